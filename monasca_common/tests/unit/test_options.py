# SPDX-License-Identifier: Apache-2.0
"""The options of all services: the names in configuration files do not change, and listing them requires no extra."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import io
import pathlib
import re
import subprocess
import sys
import types
import typing

from oslo_config import cfg, generator
from oslotest import base

from monasca_common.alarms.settings import AlarmsSettings
from monasca_common.api.settings import ApiSettings
from monasca_common.audit.settings import AuditSettings
from monasca_common.cli.configuration import own_options
from monasca_common.kafka.config.schema_registry import SchemaRegistrySettings
from monasca_common.kafka.declaration import option_of, options_of
from monasca_common.kafka.settings import ConnectionSettings, ConsumerSettings, ProducerSettings, SecuritySettings
from monasca_common.notification.settings import (
    EmailSettings,
    HttpSettings,
    JiraSettings,
    NotifierSettings,
    PagerdutySettings,
    ProcessorSettings,
    RetrySettings,
    StageSettings,
    WebhookSettings,
)
from monasca_common.operations.dashboard.settings import DashboardSettings
from monasca_common.operations.mirror.settings import MirrorSettings
from monasca_common.operations.settings import LagSettings, StartCheckSettings
from monasca_common.persister.settings import GroupSettings, GroupSwitch, PersisterSettings
from monasca_common.pipeline.archive.settings import ArchiveSettings
from monasca_common.pipeline.evaluate.settings import EvaluateSettings
from monasca_common.pipeline.replay.settings import ReplaySettings
from monasca_common.pipeline.settings import (
    AggregateSettings,
    BackfillSettings,
    JobStatusSettings,
    SparkSettings,
    StreamSettings,
)
from monasca_common.runtime.settings import StatusSettings
from monasca_common.sink.settings import SinkSettings
from monasca_common.storage.legacy import OldInfluxdb, OldRepositories
from monasca_common.storage.settings import StorageSettings

ETC = pathlib.Path(__file__).parents[3] / "etc"
STORED = pathlib.Path(__file__).with_name("options.txt")
OF_KEYSTONEAUTH = "monasca_common.api.tokens"  # required to list its options in the sample
DECLARING = (
    AlarmsSettings,
    ApiSettings,
    AuditSettings,
    ConnectionSettings,
    ConsumerSettings,
    DashboardSettings,
    ProducerSettings,
    SchemaRegistrySettings,
    SecuritySettings,
    MirrorSettings,
    StageSettings,
    EmailSettings,
    HttpSettings,
    JiraSettings,
    NotifierSettings,
    PagerdutySettings,
    ProcessorSettings,
    RetrySettings,
    WebhookSettings,
    GroupSettings,
    GroupSwitch,
    PersisterSettings,
    SinkSettings,
    ArchiveSettings,
    ReplaySettings,
    AggregateSettings,
    EvaluateSettings,
    BackfillSettings,
    JobStatusSettings,
    SparkSettings,
    LagSettings,
    StartCheckSettings,
    StatusSettings,
    StreamSettings,
    StorageSettings,
    OldInfluxdb,
    OldRepositories,
)
# Packages of extras that `docs` does not install.
BLOCKED = (
    "alembic",
    "confluent_kafka.schema_registry",
    "cotyledon",
    "falcon",
    "gunicorn",
    "jinja2",
    "keystonemiddleware",
    "oslo_middleware",
    "oslo_policy",
    "pandas",
    "prometheus_client",
    "psutil",
    "psycopg",
    "py4j",
    "pyarrow",
    "pyspark",
    "sqlalchemy",
)
_IMPORTING = """
import importlib, sys
sys.modules.update(dict.fromkeys(sys.argv[2:]))
module, name = sys.argv[1].split(":")
for group, options in getattr(importlib.import_module(module), name)():
    print(group, len(options))
"""
_PIPES = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
_FIXED = re.compile(r"# (Minimum|Maximum) value: |# Deprecated group/name - |#?\S+ = ?")
_CHOICE = re.compile(r"# (\S+) - ")


def generated() -> str:
    """Return the output of oslo-config-generator for our own options, each paragraph on one line."""
    conf = cfg.ConfigOpts()
    generator.register_cli_opts(conf)
    conf(["--config-file", str(ETC / "config-generator.conf"), "--wrap-width", "10000"])
    ours = [name for name in conf.namespace if name.startswith("monasca_common") and name != OF_KEYSTONEAUTH]
    conf.set_override("namespace", ours)
    written = io.StringIO()
    generator.generate(conf, output_file=written)
    return written.getvalue()


def normalised(text: str) -> str:
    """Return the output without help texts and namespaces: groups, types, bounds, choices, former names, defaults
    and order."""
    lines = []
    for paragraph in re.split(r"\n{2,}", text):
        choices = False
        for line in paragraph.splitlines():
            kind = re.search(r" \(([\w -]+ value|list value|multi valued)\)$", line)
            if line == "# Possible values:":
                choices = True
            elif choices and (choice := _CHOICE.match(line)):
                lines.append(f"  choice: {choice[1]}")
            elif _FIXED.match(line) or line.startswith("["):
                choices = False
                lines.append(line if line.startswith("[") else f"  {line.lstrip('# ')}")
            elif "sample default" in line:
                lines.append("  a sample default:")
            elif kind:
                lines.append(f"- {kind[1]}")
    return "\n".join(lines) + "\n"


class GeneratedTest(base.BaseTestCase):
    # Rule 70
    def test_groups_options_types_bounds_choices_former_names_defaults_and_order_are_as_stored(self):
        self.assertEqual(STORED.read_text(), normalised(generated()))

    def test_former_names_choices_bounds_and_defaults_are_compared(self):
        text = normalised(generated())
        for part in (
            "[kafka_alarm_history]\n",
            "  Deprecated group/name - [kafka]/uri\n",
            "  choice: SASL_SSL\n",
            "  Minimum value: 1048576\n",
            "- integer value\n",
            "  linger_ms = 10\n",
            "  bootstrap_servers = <None>\n",
            "  a sample default:\n  bootstrap_servers = kafka1.example.org:9092,kafka2.example.org:9092\n",
        ):
            self.assertIn(part, text)


class ImportTest(base.BaseTestCase):
    # Rule 71
    def test_options_are_listed_without_any_extra(self):
        entries = [
            each
            for each in importlib.metadata.entry_points(group="oslo.config.opts")
            if each.name.startswith("monasca_common")
        ]
        entries = [each for each in entries if each.name != OF_KEYSTONEAUTH]
        self.assertEqual(16, len({each.value for each in entries}))
        started = [
            (each, subprocess.Popen([sys.executable, "-c", _IMPORTING, each.value, *BLOCKED, "cliff"], **_PIPES))
            for each in {each.value: each for each in entries}.values()
        ]
        for each, process in started:
            listed, errors = process.communicate()
            self.assertEqual((0, ""), (process.returncode, errors), each.value)
            self.assertIn(each.name.removeprefix("monasca_common.").replace(".", "_"), listed)


class DeclarationTest(base.BaseTestCase):
    def declared(self):
        for made in DECLARING:
            hints = typing.get_type_hints(made)
            for field in dataclasses.fields(made):
                found = option_of(field, hints[field.name])
                if found is not None:
                    yield made, field, hints[field.name], found

    def test_every_number_has_a_unit(self):
        for made in DECLARING:
            for each in options_of(made):
                if each.type in (cfg.IntOpt, cfg.FloatOpt):
                    self.assertTrue(each.unit, f"{made.__name__}: {each.name}")

    def test_every_number_has_a_minimum_and_a_maximum(self):
        for made in DECLARING:
            for each in options_of(made):
                if each.type in (cfg.IntOpt, cfg.FloatOpt):
                    self.assertNotIn(None, (each.minimum, each.maximum), f"{made.__name__}: {each.name}")

    def test_every_help_text_consists_of_sentences(self):
        for made in DECLARING:
            for each in options_of(made):
                self.assertRegex(each.help, r"^[A-Z].*\.$", f"{made.__name__}: {each.name}")

    # Rule 70
    def test_a_secret_is_in_no_repr_and_has_no_bounds(self):
        secrets = set()
        for made, field, _, found in self.declared():
            if found.secret:
                secrets.add(found.name)
                self.assertFalse(field.repr, f"{made.__name__}.{field.name}")
                self.assertEqual((None, None, None), (found.minimum, found.maximum, found.choices), found.name)
        self.assertLessEqual({"sasl_password", "connection", "location", "options", "producer_options"}, secrets)

    def test_the_choices_of_an_option_are_those_of_its_field(self):
        literals = 0
        for made, field, annotation, found in self.declared():
            if typing.get_origin(annotation) is typing.Literal:
                literals += 1
                self.assertEqual(set(typing.get_args(annotation)), set(found.choices), f"{made.__name__}.{field.name}")
        self.assertGreater(literals, 5)

    def test_a_default_has_the_type_of_its_field(self):
        for made, field, annotation, found in self.declared():
            if field.default is not dataclasses.MISSING and field.default is not None:
                kinds = annotation.__args__ if isinstance(annotation, types.UnionType) else (annotation,)
                origins = tuple(
                    type(typing.get_args(each)[0])
                    if typing.get_origin(each) is typing.Literal
                    else typing.get_origin(each) or each
                    for each in kinds
                )
                self.assertIsInstance(field.default, origins, f"{made.__name__}.{field.name}: {found.name}")


class AdviceTest(base.BaseTestCase):
    """A number is an option only if operators have a reason to change it; other options describe the installation."""

    def test_the_help_of_each_number_states_the_effect_of_a_wrong_value(self):
        for group, name, help_text in helps(cfg.IntOpt, cfg.FloatOpt):
            self.assertRegex(help_text, r"Too small|Too large|Larger|Unset: retention_days", f"[{group}] {name}")

    def test_the_page_advises_only_options_that_exist(self):
        page = (ETC.parent / "doc" / "source" / "admin" / "tuning.rst").read_text()
        advised = set(re.findall(r"``\[(\w+)\]\s+(\w+)``", page))
        self.assertGreater(len(advised), 30)
        self.assertEqual(set(), advised - {(group, name) for group, name, _ in helps()})


def helps(*types: type[cfg.Opt]) -> list[tuple[str, str, str]]:
    """Return group, name and help of each option of these types, except those that the group of a consumer inherits."""
    return [
        (group, each.name, each.help or "")
        for group, options in own_options()
        for each in options
        if isinstance(each, types or cfg.Opt)
        and "Inherited from [kafka]." not in (each.help or "")
        and group != "keystone_authtoken"
    ]
