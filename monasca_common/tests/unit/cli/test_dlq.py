# SPDX-License-Identifier: Apache-2.0
"""``monasca-common dlq`` with an in-memory broker."""

import json
import signal
import subprocess
from dataclasses import replace

import fixtures
import yaml

from monasca_common.audit import reports
from monasca_common.kafka import Record, TopicPartition, TransportError, dead_letters, plugins
from monasca_common.kafka.testing import MemoryKafka, MemoryRegistry
from monasca_common.kafka.transport.memory import Fail, MemoryBroker, install_broker
from monasca_common.pipeline.errors import NotAggregated
from monasca_common.tests.command import run_main
from monasca_common.tests.unit.cli.command_case import CommandCase

_CONFIGURATION = """\
[kafka]
driver = memory
bootstrap_servers = memory:9092
[database]
connection = sqlite:////nowhere/monasca.sqlite
[kafka_alarm_history]
enabled = false
"""
_PARTITION = TopicPartition("metrics.dlq", 0)


class DlqCase(CommandCase):
    command = ("dlq",)
    configuration = _CONFIGURATION

    def setUp(self):
        super().setUp()
        self.kafka = self.useFixture(MemoryKafka())
        for topic in ("metrics", "log", "metrics.dlq"):
            self.kafka.broker.create_topic(topic, 1)
        self.patch(plugins, "load_admin", lambda conf, group: self)

    def partition_counts(self):
        """The memory driver has no admin client."""
        return dict.fromkeys(self.kafka.broker.topics(), 1)

    def bury(self, count, *, origin="metrics", topic="metrics.dlq", servers="memory:9092", value=b"x", **headers):
        named = {
            dead_letters.ORIGIN_TOPIC: origin,
            dead_letters.ERROR_CLASS: "ValueError",
            dead_letters.ERROR_TEXT: "no number",
            **headers,
        }
        record = Record(value, headers=tuple((name, text.encode()) for name, text in named.items() if text))
        connection = replace(self.kafka.connection(), bootstrap_servers=servers)
        self.kafka.producer(connection=connection).publish(topic, [record] * count).raise_for_undelivered()

    def count(self, topic="metrics"):
        return len(self.kafka.broker.records(topic))


class HostileDeadLetterTest(DlqCase):
    def test_control_characters_are_shown_as_text(self):
        self.bury(
            1, **{dead_letters.ERROR_TEXT: "no \x1b]0;owned\x07\x1b[2J\u202enumber", dead_letters.GROUP: "\x1b[1mg"}
        )
        for arguments in (("list",), ("list", "--by-reason"), ("show", "metrics.dlq/0/0")):
            _, out, err = self.run_command(*arguments)
            self.assertIn("ValueError", out)
            self.assertNotRegex(out + err, "[\x00-\x08\x0b-\x1f\u202e]")
        self.assertIn("\\x1b[2J\\u202enumber", out)

    def test_a_huge_number_in_a_header_is_read_as_0(self):
        self.bury(1, **{dead_letters.REPLAYS: "9" * 5000, dead_letters.ATTEMPTS: "9" * 5000})
        self.bury(1)
        self.assertEqual([0, 0], [letter["replays"] for letter in self.rows("list")])
        self.assertEqual(0, self.rows("show", "metrics.dlq/0/0")["attempts"])

    def test_line_breaks_in_headers_add_no_lines(self):
        self.bury(1, **dict.fromkeys((dead_letters.GROUP, dead_letters.ERROR_TEXT), "one\ntwo"), origin="a\nb")
        for words in (("list",), ("list", "--by-reason")):
            self.assertEqual(1, len(self.run_command(*words, "-f", "value")[1].splitlines()))

    def test_a_digit_outside_ascii_is_not_a_partition(self):
        self.assertEqual(2, self.run_command("show", "metrics.dlq/\N{SUPERSCRIPT TWO}/0")[0])


class ListTest(DlqCase):
    def test_each_dead_letter_is_shown_with_its_origin_error_and_action(self):
        self.bury(1, **{dead_letters.ORIGIN_PARTITION: "0", dead_letters.ORIGIN_OFFSET: "17"})
        self.bury(1, **{dead_letters.VALUE_CUT_FROM: "9000000"})
        _, out, err = self.run_command("list", "-f", "csv", "--quote", "none")
        header, *rows = [line.split(",") for line in out.splitlines()]
        self.assertEqual(["dead_letter", "time", "origin", "group", "error", "replays", "action"], header)
        self.assertEqual(
            [
                ["metrics.dlq/0/0", "metrics/0/17", "", "ValueError: no number", "0", "replayable"],
                [
                    "metrics.dlq/0/1",
                    "metrics",
                    "",
                    "ValueError: no number",
                    "0",
                    "not replayable: its value was truncated",
                ],
            ],
            [[row[0], *row[2:]] for row in rows],
        )
        self.assertEqual("monasca-common dlq list: metrics.dlq: 2 pending dead letters", err.strip())

    def test_only_tables_truncate_errors(self):
        error = f"no number {'x' * 200}"
        self.bury(1, **{dead_letters.ERROR_TEXT: error})
        whole = {"dead_letter": "metrics.dlq/0/0", "error": f"ValueError: {error}", "action": "replayable"}
        for words, found in ((("list",), lambda read: read[0]), (("show", "metrics.dlq/0/0"), lambda read: read)):
            for form, parse in (("json", json.loads), ("yaml", yaml.safe_load)):
                read = found(parse(self.run_command(*words, "-f", form)[1]))
                self.assertEqual(whole, {name: read[name] for name in whole}, (words, form))
        table = self.run_command("list")[1]
        self.assertEqual((True, False), (f"ValueError: {error}"[:100] in table, error in table))

    def test_a_limited_list_reports_the_number_of_pending_dead_letters(self):
        self.bury(5)
        _, out, err = self.run_command("list", "--limit", "2", "-f", "value")
        self.assertIn("metrics.dlq: 5 pending dead letters; 2 are shown: increase --limit to see more\n", err)
        self.assertEqual(2, len(out.splitlines()))

    def test_the_limit_of_a_list_includes_refused_dead_letters(self):
        self.bury(5, origin="gone")
        _, out, err = self.run_command("list", "--limit", "2", "-f", "value")
        self.assertIn("metrics.dlq: 5 pending dead letters; 2 are shown: increase --limit to see more\n", err)
        self.assertEqual(2, len(out.splitlines()))

    def test_replayed_dead_letters_are_not_listed(self):
        self.bury(1)
        self.rows("replay", "--execute")
        self.assertEqual([], self.rows("list"))

    def test_a_missing_topic_of_a_service_is_reported(self):
        text = _CONFIGURATION.replace("[kafka_alarm_history]\nenabled = false\n", "")
        status, _, err = self.run_command("list", text=text)
        self.assertEqual(0, status)
        self.assertIn("alarm-state-transitions.dlq: this topic does not exist", err)

    def test_a_missing_topic_named_by_an_option_is_an_error(self):
        status, _, err = self.run_command("list", "--topic", "nowhere.dlq")
        self.assertEqual(
            (1, "monasca-common dlq list: --topic nowhere.dlq: this topic does not exist: correct its name"),
            (status, err.strip()),
        )

    def test_any_topic_can_be_listed(self):
        self.kafka.broker.create_topic("elsewhere.dlq", 2)
        self.bury(3, topic="elsewhere.dlq")
        self.assertEqual(3, len(self.rows("list", "--topic", "elsewhere.dlq")))

    def topics(self, text):
        """Return the topics that are read."""
        _, _, err = self.run_command("list", text=text)
        return sorted(line.split(": ")[1] for line in err.splitlines())

    def test_the_topic_of_rejected_metrics_is_listed(self):
        self.kafka.broker.create_topic("rejected", 1)
        text = f"{_CONFIGURATION}[api]\ninvalid_metrics = drop\nrejected_metrics_topic = rejected\n"
        self.assertEqual(["metrics.dlq", "rejected"], self.topics(text))

    def test_a_service_without_configuration_is_skipped(self):
        text = _CONFIGURATION.partition("[database]")[0] + "[api]\ninvalid_metrics = drop\n"
        self.assertEqual(["metrics.dlq"], self.topics(text))

    def test_without_configured_services_all_topics_ending_in_dlq_are_listed(self):
        self.kafka.broker.create_topic("orders.dlq", 1)
        self.bury(1)
        self.bury(2, topic="orders.dlq")
        text = _CONFIGURATION.partition("[database]")[0]
        self.assertEqual(
            ["metrics.dlq/0/0", "orders.dlq/0/0", "orders.dlq/0/1"],
            [row["dead_letter"] for row in self.rows("list", text=text)],
        )

    def test_without_dead_letter_topics_the_error_names_the_option(self):
        text = _CONFIGURATION.partition("[database]")[0]
        for command in (("replay",), ("purge", "--all")):  # they change only topics that are configured or named
            status, _, err = self.run_command(*command, text=text)
            self.assertEqual((1, True), (status, "the configured services have no dead-letter topics: name one" in err))
        self.kafka.broker.delete_topic("metrics.dlq")
        status, _, err = self.run_command("list", text=text)
        self.assertEqual((1, True), (status, "the brokers and the configured services have no dead-letter" in err), err)

    def test_a_configuration_without_brokers_is_an_error(self):
        status, _, err = self.run_command("list", text="[database]\nconnection = sqlite:////x\n")
        self.assertEqual(1, status)
        self.assertIn("bootstrap_servers in group [kafka] is not set", err)


class HelpTest(DlqCase):
    def test_each_command_has_an_example_in_its_help(self):
        for command in ("list", "show", "replay", "purge"):
            status, shown, _ = run_main("dlq", command, "--help")
            self.assertEqual(0, status)
            _, _, examples = "".join(shown.split()).partition("Forexample")  # independent of line breaks
            self.assertIn(f"monasca-commondlq{command}", examples)


class ShowTest(DlqCase):
    def test_the_first_origin_of_a_replayed_message_is_shown(self):
        place = {dead_letters.ORIGIN_PARTITION: "0", dead_letters.ORIGIN_OFFSET: "17"}
        self.bury(1, **place)
        self.bury(1, **place, **{dead_letters.REPLAYS: "1", dead_letters.FIRST_ORIGIN: "metrics/0/4"})
        found = [self.rows("show", f"metrics.dlq/0/{offset}")["first_origin"] for offset in (0, 1)]
        self.assertEqual(["metrics/0/17", "metrics/0/4"], found)
        self.assertIn("metrics/0/4", self.run_command("show", "metrics.dlq/0/1")[1])

    def test_a_value_with_a_schema_is_shown_as_json(self):
        registry = self.useFixture(MemoryRegistry())
        registry.answer("POST", "/subjects/metrics-value/versions", {"schema": '"string"'})
        self.bury(1, value=b"\0\0\0\0\1" + b"\x0ahello")
        text = f"{_CONFIGURATION}[schema_registry]\nurl = {registry.url}\n"
        self.assertEqual('"hello"', self.rows("show", "metrics.dlq/0/0", "--payload", text=text)["value"])

    def test_a_shell_assigns_values_and_does_not_run_them(self):
        hostile = "$(echo run) `echo run` ${HOME} \\"
        self.bury(1, value=f'"{hostile}'.encode(), **{dead_letters.ERROR_TEXT: hostile})
        status, out, _ = self.run_command("show", "metrics.dlq/0/0", "--payload", "-f", "shell")
        script = f'{out}printf "%s\\n%s" "$error" "$value"'
        assigned = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True).stdout
        self.assertEqual((0, f'ValueError: {hostile}\n"{hostile}'), (status, assigned))

    def test_a_missing_dead_letter_ends_with_status_3(self):
        for place in ("metrics.dlq/0/0", "metrics.dlq/7/0", "nowhere.dlq/0/0"):
            status, _, err = self.run_command("show", place)
            self.assertEqual(
                (3, True), (status, f"there is no dead letter {place}: `monasca-common dlq list`" in err), err
            )

    def test_a_note_is_not_a_dead_letter(self):
        self.bury(1)
        self.bury(1, origin="log")
        self.rows("replay", "--origin", "log", "--execute")
        self.assertEqual(3, len(self.kafka.broker.records("metrics.dlq")))
        self.assertEqual(3, self.run_command("show", "metrics.dlq/0/2")[0])

    def test_show_has_no_option_topic(self):
        self.assertEqual(2, self.run_command("show", "metrics.dlq/0/0", "--topic", "metrics.dlq")[0])


class ReplayTest(DlqCase):
    def outcomes(self, *arguments, status=0):
        found, out, err = self.run_command("replay", *arguments, "-f", "json")
        self.assertEqual(status, found, err)
        return [(row["outcome"], row["reason"], row["dead_letters"]) for row in json.loads(out)]

    def test_without_execute_nothing_is_sent(self):
        self.bury(3)
        self.assertEqual([("replayable", "", 3)], self.outcomes())
        self.assertIn("nothing was changed: use --execute to apply", self.run_command("replay")[2])
        self.assertEqual(0, self.count())

    def test_an_unknown_column_is_refused_before_anything_is_sent(self):
        self.bury(1)
        before = self.count()
        status, out, err = self.run_command("replay", "--execute", "-c", "outcomes")
        self.assertEqual((1, "", before), (status, out, self.count()))
        self.assertIn("No recognized column names in ['outcomes']", err)

    def test_without_dead_letters_nothing_is_printed(self):
        self.assertEqual((0, "", ""), self.run_command("replay", "--topic", "metrics.dlq"))

    def test_nothing_is_replayed_if_a_named_topic_is_missing(self):
        self.bury(1)
        status, _, err = self.run_command("replay", "--topic", "metrics.dlq", "--topic", "nope", "--execute")
        self.assertEqual((1, 0), (status, self.count()), err)
        self.assertIn("--topic nope: this topic does not exist", err)

    def test_replayable_dead_letters_are_replayed_and_the_others_are_counted_by_reason(self):
        self.bury(2)
        self.bury(2, **{dead_letters.REPLAYS: "3"})
        self.bury(1, origin="log")
        self.assertEqual(
            [("not replayable", "it was already replayed 3 times: repair its consumer first", 2), ("replayed", "", 3)],
            self.outcomes("--execute"),
        )
        self.assertEqual((2, 1), (self.count("metrics"), self.count("log")))

    def test_replayed_messages_are_reported_to_the_audit(self):
        self.kafka.broker.create_topic("monasca-audit", 1)
        folder = self.useFixture(fixtures.TempDir()).path
        text = f"{_CONFIGURATION}[audit]\nenabled = true\nfolder = {folder}\n"
        self.bury(2)
        self.rows("replay", text=text)
        self.assertEqual(0, self.count("monasca-audit"))
        self.rows("replay", "--execute", text=text)

        [message] = self.kafka.broker.records("monasca-audit")
        report = reports.decode(message.value)
        self.assertEqual(("producer", "monasca-dlq-replay"), (report.tier, report.application))
        self.assertEqual([("metrics", 2)], [(each.topic, each.messages) for each in report.counts])

    def test_a_second_run_sends_nothing(self):
        self.bury(2)
        self.assertEqual([[("replayed", "", 2)], []], [self.outcomes("--execute") for _ in "ab"])
        self.assertEqual(2, self.count())

    def test_a_run_is_limited(self):
        self.bury(3)
        runs = [self.outcomes("--execute", "--limit", "2") for _ in "ab"]
        self.assertEqual([[("replayed", "", 2)], [("replayed", "", 1)]], runs)

    def test_partial_delivery_ends_with_status_4_and_prints_delivered_messages(self):
        self.bury(1)
        self.bury(1, origin="log")
        self.kafka.broker.inject("produce", Fail("NOT_ENOUGH_REPLICAS"), topic="log", count=None)
        status, out, err = self.run_command("replay", "--execute", "-f", "value")
        self.assertEqual((4, "metrics.dlq replayed  1\n"), (status, out))
        self.assertTrue(err.splitlines()[-1].startswith("monasca-common dlq replay: "))
        self.assertEqual({_PARTITION: 1}, self.kafka.broker.committed("monasca-dlq-replay"))

    def test_refused_dead_letters_stay_pending_and_end_with_status_4(self):
        self.bury(1)
        self.bury(2, origin="gone")
        self.bury(1, origin="log")
        refused = ("refused", "there is no topic gone", 2)
        for words, outcome in (((), "replayable"), (("--execute",), "replayed")):
            self.assertEqual(sorted([(outcome, "", 2), refused]), self.outcomes(*words, status=4))
            self.assertIn("2 dead letters left for the next run", self.run_command("replay")[2])
        self.assertEqual(["refused: there is no topic gone"] * 2, [letter["action"] for letter in self.rows("list")])
        self.assertEqual([refused], self.outcomes("--execute", status=1))

    # Rule 17
    def test_a_message_with_dead_letters_in_several_topics_is_replayed_once(self):
        self.kafka.broker.create_topic("other.dlq", 1)
        for topic in ("metrics.dlq", "other.dlq"):
            self.bury(1, topic=topic, **{dead_letters.ORIGIN_MESSAGE_ID: "one"})
        both = ("--topic", "metrics.dlq", "--topic", "other.dlq")
        for arguments in (("replay",), ("replay", "--execute")):
            first, second = self.rows(*arguments, *both)
            self.assertEqual(("metrics.dlq", 1, "other.dlq"), (first["topic"], first["dead_letters"], second["topic"]))
            self.assertEqual(("not replayable", 1), (second["outcome"], second["dead_letters"]))
        self.assertEqual(1, self.count())
        self.assertEqual([], self.rows("list", *both))

    def test_dead_letters_of_spark_jobs_are_reported_because_jobs_may_ignore_them(self):
        self.bury(1)
        self.assertEqual("", self.run_command("replay", "--execute")[2])
        error = f"{NotAggregated.__module__}.{NotAggregated.__qualname__}"
        self.bury(2, **{dead_letters.ERROR_CLASS: error})
        self.bury(1, **{dead_letters.ERROR_CLASS: error, dead_letters.REPLAYS: "3"})
        for words in ((), ("--execute",)):
            status, _, err = self.run_command("replay", *words)
            self.assertEqual(
                (0, True), (status, "2 dead letters from jobs on Spark: a job whose duplicates_lookback" in err)
            )
        self.assertEqual(3, self.count())

    def test_a_count_is_a_number(self):
        for option in ("--limit", "--max-replays"):
            for text in ("0", "99999999999999999999"):
                self.assertEqual(2, self.run_command("list" if option == "--limit" else "replay", option, text)[0])

    def test_a_run_without_a_delivery_ends_with_status_1(self):
        self.bury(1)
        self.kafka.broker.inject("produce", Fail("NOT_ENOUGH_REPLICAS"), topic="metrics", count=None)
        self.assertEqual(1, self.run_command("replay", "--execute")[0])


class SelectionTest(DlqCase):
    def setUp(self):
        super().setUp()
        self.bury(2)
        self.bury(1, **{dead_letters.ERROR_CLASS: "KeyError", dead_letters.ORIGIN_PARTITION: "3"})
        self.bury(1, origin="log")

    def test_a_replayed_dead_letter_after_a_pending_one_is_not_pending(self):
        self.assertEqual(1, self.rows("replay", "--origin", "log", "--execute")[0]["dead_letters"])
        self.assertEqual(3, len(self.rows("list")))

    def selected(self, *arguments):
        return [each["dead_letter"] for each in self.rows("list", *arguments)]

    def test_dead_letters_are_selected_by_reason_origin_and_time(self):
        self.assertEqual(["metrics.dlq/0/2"], self.selected("--reason", "keyerr"))
        self.assertEqual(["metrics.dlq/0/3"], self.selected("--origin", "log"))
        self.assertEqual(4, len(self.selected("--since", "2020-01-01", "--until", "2999-01-01")))

    def test_an_empty_selection_ends_with_status_3(self):
        for command in (("list",), ("replay",), ("replay", "--execute")):
            status, _, err = self.run_command(*command, "--reason", "else")
            self.assertEqual((3, True), (status, "no pending dead letter is selected" in err))

    def test_dead_letters_are_counted_by_reason(self):
        first = {"topic": "metrics.dlq", "origin": "metrics", "error": "ValueError", "dead_letters": 2}
        self.assertEqual(first, self.rows("list", "--by-reason")[0])
        rows = self.run_command("list", "--by-reason", "-f", "csv")[1].splitlines()
        self.assertEqual(
            ['"topic","origin","error","dead_letters"', '"metrics.dlq","metrics","ValueError",2'], rows[:2]
        )

    def test_a_limited_selection_is_reported(self):
        _, _, err = self.run_command("list", "--reason", "ValueError", "--limit", "1")
        self.assertIn("metrics.dlq: 4 pending dead letters; 1 are shown: increase --limit to see more\n", err)

    def test_a_complete_selection_has_no_remark(self):
        _, _, err = self.run_command("list", "--reason", "KeyError", "--limit", "2")
        self.assertEqual("monasca-common dlq list: metrics.dlq: 4 pending dead letters", err.strip())

    def test_progress_includes_dead_letters_that_are_not_selected(self):
        updates = []
        update = "monasca_common.cli.progress.Shown.update"
        self.useFixture(fixtures.MonkeyPatch(update, lambda _, *counts: updates.append(counts)))
        for arguments in ((), ("--by-reason",), ("--reason", "no such reason")):
            self.run_command("list", *arguments)
            self.assertEqual((4, 0), updates.pop())

    def test_an_invalid_time_or_count_is_a_usage_error(self):
        for arguments in (("--max-replays", "x"), ("--since", "yesterday")):
            self.assertEqual(2, self.run_command("list", *arguments)[0])


class PurgeTest(DlqCase):
    def setUp(self):
        super().setUp()
        self.refused = self.interrupted = None
        self.bury(2)
        self.bury(1, **{dead_letters.ERROR_CLASS: "KeyError"})
        self.bury(1)

    def delete_records(self, before):
        for partition, offset in before.items():
            if partition.topic == self.interrupted:
                signal.raise_signal(signal.SIGTERM)
            if partition.topic == self.refused:
                raise TransportError("it may not", name="TOPIC_AUTHORIZATION_FAILED")
            self.kafka.broker.delete_records(*partition, offset)

    def left(self):
        return len(self.kafka.broker.records("metrics.dlq"))

    def test_all_dead_letters_are_deleted_and_skipped(self):
        self.assertEqual((0, 0), (self.run_command("purge", "--all", "--execute")[0], self.left()))
        self.assertEqual({_PARTITION: 4}, self.kafka.broker.committed("monasca-dlq-replay"))

    def test_deletions_before_an_error_are_printed(self):
        self.kafka.broker.create_topic("other.dlq", 1)
        self.bury(3, topic="other.dlq")
        self.refused = "other.dlq"
        arguments = ("purge", "--all", "--topic", "metrics.dlq", "--topic", "other.dlq", "--execute")
        status, out, err = self.run_command(*arguments, "-f", "json")
        self.assertEqual((1, 0, 3), (status, self.left(), len(self.kafka.broker.records("other.dlq"))))
        found = [(row["topic"], row["offsets"], row["deleted"]) for row in json.loads(out)]
        self.assertEqual([("metrics.dlq", 4, True), ("other.dlq", 3, False)], found)
        self.assertIn("it may not", err)

    def test_deletions_before_an_interrupt_are_printed(self):
        self.kafka.broker.create_topic("other.dlq", 1)
        self.bury(3, topic="other.dlq")
        self.interrupted = "other.dlq"
        arguments = ("purge", "--all", "--topic", "metrics.dlq", "--topic", "other.dlq", "--execute")
        status, out, _ = self.run_command(*arguments, "-f", "value")
        self.assertEqual((143, 0, 3), (status, self.left(), len(self.kafka.broker.records("other.dlq"))))
        self.assertEqual(["metrics.dlq 4 True", "other.dlq 3 False"], out.splitlines())

    def test_a_selection_is_required(self):
        self.assertEqual(2, self.run_command("purge")[0])
        (row,) = self.rows("purge", "--all")
        self.assertEqual((4, False), (row["offsets"], row["deleted"]))
        self.assertEqual(4, self.left())

    def test_handled_dead_letters_are_selected(self):
        self.assertEqual(3, self.run_command("purge", "--dealt-with", "--execute")[0])
        self.rows("replay", "--execute", "--limit", "2")
        self.assertEqual(0, self.run_command("purge", "--dealt-with", "--execute")[0])
        self.assertEqual(2, self.left())


class ServersTest(DlqCase):
    def setUp(self):
        super().setUp()
        other = MemoryBroker()
        other.create_topic("metrics", 1)
        other.create_topic("metrics.dlq", 1)
        install_broker("other:9092", other)
        self.text = f"{_CONFIGURATION}[kafka_metrics]\nbootstrap_servers = other:9092\ngroup_instance_id = one\n"

    def test_dead_letters_are_read_from_the_brokers_of_their_consumer(self):
        self.bury(1)  # at the servers of [kafka]
        _, _, err = self.run_command("list", "--topic", "metrics.dlq", text=self.text)
        pending = sorted(line.partition("metrics.dlq: ")[2] for line in err.splitlines())
        # The topics of the persister, and of the job that reads from [kafka].
        self.assertEqual(["0 pending dead letters", "1 pending dead letter"], pending)

    def test_a_mirrored_message_is_replayed_on_each_side(self):
        for servers in ("memory:9092", "other:9092"):
            self.bury(1, servers=servers, **{dead_letters.ORIGIN_MESSAGE_ID: "one"})
        rows = self.rows("replay", "--execute", text=self.text)
        self.assertEqual([("replayed", 1)] * 2, [(row["outcome"], row["dead_letters"]) for row in rows])
