# SPDX-License-Identifier: Apache-2.0
"""``monasca-common config check``: errors in files, without a broker, a database or Keystone."""

import importlib.metadata
import json
import sys
from unittest import mock

import fixtures

from monasca_common.kafka.plugins import producing_driver
from monasca_common.kafka.settings import ConnectionSettings, ProducerSettings
from monasca_common.tests.unit.cli.command_case import CommandCase

_GOOD = """\
[kafka]
bootstrap_servers = kafka:9092
[database]
connection = sqlite:////nowhere/monasca.sqlite
[api]
auth_strategy = noauth
"""
_KEYS = f"[alarms]\naddress_keys = {'A' * 43}=\n"


class ConfigCheckTest(CommandCase):
    command = ("config", "check")
    configuration = _GOOD

    def faults(self, text, *arguments, service="api"):
        status, out, err = self.run_command("-f", "json", "--service", service, *arguments, text=text)
        self.assertEqual("", err)
        faults = [row["finding"] for row in json.loads(out) if row["severity"] == "FAULT"]
        self.assertEqual(1 if faults else 0, status)
        return faults

    def notes(self, text, service="api"):
        _, out, _ = self.run_command("-f", "json", "--service", service, text=text)
        return " ".join(row["finding"] for row in json.loads(out) if row["severity"] == "NOTE")

    def test_a_valid_file_has_no_faults(self):
        ignored = "[kafka]\ntransactional_id = agent-1\n"
        status, out, err = self.run_command("-f", "json", text=_GOOD + _KEYS + ignored)
        self.assertEqual((0, ""), (status, err))
        finding = (
            f"the producer uses the driver {producing_driver(ProducerSettings(ConnectionSettings('nowhere:9092')))}"
        )
        services = ("api", "persister", "pipeline", "lag")
        expected = [{"service": service, "severity": "OK", "finding": finding} for service in services]
        self.assertEqual(expected, json.loads(out))

    def test_an_empty_file_has_several_faults_and_all_are_reported(self):
        status, out, _ = self.run_command("-f", "value", text="[api]\nport = 8070\n")
        self.assertEqual(1, status)
        api, persister = out.partition("persister FAULT")[::2]
        for lacking in ("api FAULT", "bootstrap_servers", "options are missing in [keystone_authtoken]"):
            self.assertIn(lacking, api)
        for lacking in ("bootstrap_servers", "connection in group [database] is not set"):
            self.assertIn(lacking, persister)

    def test_the_group_of_the_former_periodic_topic_is_noted(self):
        text = f"{_GOOD}{_KEYS}[kafka_periodic_notifications]\ntopic = 60-seconds-notifications\n"
        notes = self.notes(text, service="notification")
        self.assertIn("[kafka_periodic_notifications] is ignored (topic): periodic notifications are stored", notes)

    def test_a_removed_name_is_a_fault(self):
        (fault,) = self.faults(f"{_GOOD}{_KEYS}[storage]\nmax_results = 9\n")
        self.assertIn("max_results in group [storage] has no effect", fault)
        self.assertIn("one read returns at most 100,000 rows; remove it", fault)

    def test_one_fault_does_not_hide_another(self):
        text = "[storage]\nretention_days = 0\n[persister]\nstatus_prot = 1\n"
        found = " ".join(self.faults(text, service="persister"))
        for fault in ("bootstrap_servers", "retention_days", "did you mean 'status_port'"):
            self.assertIn(fault, found)

    def test_a_fault_that_prevents_a_start_is_reported(self):
        for service, option, fault in (
            ("api", "[api]\nmetrics_topic = a b\n", "metrics_topic in group [api]"),
            ("persister", "[kafka_metrics]\nnum_processors = 2\n", "num_processors in group [kafka_metrics] is 2"),
            ("persister", "[storage]\ndriver = influxdb\n", "connection in group [database] is a URL of 'sqlite'"),
            ("pipeline", "[pipeline_aggregate]\ntransform_specs = /nowhere\n", "cannot be read: /nowhere"),
            ("pipeline", "[spark]\noptions = nothing\n", "options in group [spark]"),
            ("pipeline", "[pipeline_replay]\nto = storage\n", "location in group [pipeline_archive] is not set"),
        ):
            found = self.faults(_GOOD + option, service=service)
            self.assertIn(fault, " ".join(found))
            self.assertEqual(1, len(found), found)

    def test_a_missing_optional_part_is_a_note(self):
        text = _GOOD.replace("[database]\nconnection = sqlite:////nowhere/monasca.sqlite\n", "")
        self.assertEqual([], self.faults(text))
        self.assertIn("only posts are served", self.notes(text))

    def test_addresses_without_keys_are_a_note(self):
        note = "address_keys in group [alarms] is not set: addresses of notification methods"
        self.assertIn(note, self.notes(_GOOD, service="notification"))
        self.assertNotIn("address_keys", self.notes(_GOOD + _KEYS, service="notification"))
        [fault] = self.faults(_GOOD + "[alarms]\naddress_keys = s3cret\n", service="notification")
        self.assertIn("address_keys in group [alarms] is refused", fault)
        self.assertNotIn("s3cret", fault)

    def test_a_group_without_reader_is_a_note(self):
        self.assertIn("group [persistr]: did you mean [persister]?", self.notes(_GOOD + "[persistr]\n"))

    def test_the_group_of_a_third_party_notifier_is_known_and_resembles_no_other(self):
        text = f"{_GOOD}[ntfy_notifier]\ntimeout = 5\n"
        self.assertTrue(self.notes(text).endswith("no service reads the group [ntfy_notifier]"))
        installed = importlib.metadata.EntryPoint("ntfy", "ntfy_notifier:NtfyNotifier", "monasca_common.notifiers")
        found = importlib.metadata.entry_points
        with fixtures.MonkeyPatch(
            "importlib.metadata.entry_points",
            lambda **named: [installed] if named == {"group": "monasca_common.notifiers"} else found(**named),
        ):
            self.assertNotIn("ntfy", self.notes(text))
        self.assertNotIn("[oslo_policy]", self.notes(_GOOD + "[oslo_policy]\nenforce_scope = true\n"))

    def test_a_missing_package_is_reported_with_its_extra(self):
        with mock.patch.dict(sys.modules):
            sys.modules.pop("monasca_common.persister.service", None)
            sys.modules.pop("monasca_common.runtime.workers", None)
            sys.modules["cotyledon"] = None
            found = self.faults(_GOOD, service="persister")
        self.assertEqual(["cotyledon is not installed: install monasca-common[persister]"], found)

    def test_a_requirement_that_no_check_imports_is_reported(self):
        installed = importlib.metadata.distributions

        def without_pyspark(**criteria):
            return () if criteria == {"name": "pyspark"} else installed(**criteria)

        with mock.patch("importlib.metadata.distributions", without_pyspark):
            found = self.faults(_GOOD, service="pipeline")
        self.assertIn("pyspark is not installed: install monasca-common[spark]", found)

    def test_no_secret_is_quoted(self):
        text = _GOOD.replace("sqlite:////nowhere/monasca.sqlite", "postgresql://me:hush@db/monasca")
        _, out, err = self.run_command(text=text)
        self.assertNotIn("hush", out + err)

    def test_an_unreadable_file_is_a_fault_of_every_service(self):
        _, out, _ = self.run_command("--config-file", "/nowhere.conf", "-f", "value")
        self.assertEqual(4, out.count(" FAULT "))
