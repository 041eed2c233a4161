# SPDX-License-Identifier: Apache-2.0
"""``monasca-common offsets`` with a SQLite file and a simulated cluster."""

import csv
import io
import json
import time
from unittest import mock

import fixtures
import yaml

from monasca_common.kafka import plugins
from monasca_common.kafka.errors import TransportError
from monasca_common.kafka.message import TopicPartition
from monasca_common.kafka.transport.admin import TopicDescription
from monasca_common.pipeline.jobs.activity import heartbeat
from monasca_common.storage.base import StoredOffset
from monasca_common.storage.settings import StorageSettings
from monasca_common.tests.contracts.storage import SqlDatabase
from monasca_common.tests.unit.cli.command_case import CommandCase
from monasca_common.tests.unit.storage.sqlite_case import copy_schema

_GROUP = "persister"
_FIRST, _SECOND = TopicPartition("metrics", 0), TopicPartition("metrics", 1)


class Cluster:
    """A simulated admin client. ``log``: the offsets of each partition of the topic ``metrics``."""

    def __init__(self):
        self.log = {_FIRST: (0, 100), _SECOND: (0, 100)}
        self.written = {}  # the end of a log including uncommitted messages
        self.topic_id = "first"
        self.members = []
        self.committed = {}
        self.altered = []
        self.refusal = None
        self.later = None  # the first offset after any requested time

    def topic_ids(self, topics, timeout):
        return {topic: self.topic_id for topic in topics if topic == "metrics"}

    def describe_topic(self, name):
        count = len(self.log)
        return TopicDescription(name, self.topic_id, count, (1,) * count, ((1,),) * count, ((1,),) * count)

    def first_offsets(self, partitions):
        return {each: self.log[each][0] for each in partitions}

    def end_offsets(self, partitions, *, open_transactions=False):
        written = self.written if open_transactions else {}
        return {each: written.get(each, self.log[each][1]) for each in partitions}

    def offsets_for_times(self, times_ms):
        return dict.fromkeys(times_ms, self.later)

    def group_members(self, group):
        return tuple(self.members)

    def group_offsets(self, group):
        return dict(self.committed)

    def alter_group_offsets(self, group, offsets):
        if self.refusal is not None:
            raise self.refusal
        self.altered.append((group, offsets))


class OffsetsCase(CommandCase):
    command = ("offsets",)

    def setUp(self):
        super().setUp()
        self.folder = self.useFixture(fixtures.TempDir()).path
        self.cluster = Cluster()
        self.sections = []
        self.patch(plugins, "load_admin", self.load_admin)
        self.url = f"sqlite:///{self.folder}/monasca.sqlite"
        self.database = SqlDatabase(self.addCleanup, StorageSettings("sqlite", self.url))
        copy_schema(f"{self.folder}/monasca.sqlite")
        self.consumer = f"[kafka_metrics]\ntopic = metrics\ngroup_id = {_GROUP}\nthreads = 3\n"
        self.configure(self.consumer + f"[database]\nconnection = {self.url}\n")

    def load_admin(self, conf, section):
        self.sections.append(section)
        return self.cluster

    def configure(self, text):
        self.configuration = "[kafka]\nbootstrap_servers = kafka:9092\n" + text

    def store(self, *partitions, next_offset=50, topic_id="first", group=_GROUP):
        with self.database.storage().open_writer() as writer:
            writer.begin(group, dict.fromkeys(partitions, next_offset), dict.fromkeys(partitions, topic_id))

    def stored(self):
        return set(self.database.storage().status().offsets)

    def run_command(self, *arguments, group=_GROUP):
        return super().run_command(*arguments, "--group", group)


class TestReset(OffsetsCase):
    def test_a_dry_run_is_the_default_and_changes_nothing(self):
        self.store(_FIRST, _SECOND)
        before = self.stored()
        status, _, err = self.run_command("reset", "--to-latest")
        self.assertEqual(0, status)
        self.assertIn("nothing was changed: use --execute to apply", err)
        self.assertEqual((before, []), (self.stored(), self.cluster.altered))

    def test_an_unknown_column_is_refused_before_any_offset_is_changed(self):
        self.store(_FIRST)
        before = self.stored()
        status, out, _ = self.run_command("reset", "--to-latest", "--execute", "-c", "offset")
        self.assertEqual((1, "", before, []), (status, out, self.stored(), self.cluster.altered))

    def test_the_group_of_a_running_job_is_refused(self):
        self.store(_FIRST)
        arguments = ("reset", "--to-latest", "--execute")
        before = self.stored()
        with heartbeat(self.url, [(_GROUP, "metrics")]):
            status, _, error = self.run_command(*arguments)
        for part in ("topic 'metrics' as group 'persister'", "s ago: stop it first", "has not reported for 60 s"):
            self.assertIn(part, error)
        self.assertEqual((1, before, []), (status, self.stored(), self.cluster.altered))
        for group, topic in ((_GROUP, "events"), ("another", "metrics")):
            with heartbeat(self.url, [(group, topic)]):
                self.assertEqual(0, self.run_command(*arguments)[0])
        self.assertEqual({100}, {each.next_offset for each in self.stored()})

    def test_the_group_of_a_stopped_job_is_reset(self):
        self.store(_FIRST)
        with heartbeat(self.url, [(_GROUP, "metrics")]):
            pass
        self.assertEqual(0, self.run_command("reset", "--to-latest", "--execute")[0])
        clock = mock.Mock(time_ms=lambda: round(time.time() * 1000) - 61_000)
        with heartbeat(self.url, [(_GROUP, "metrics")], clock):
            self.assertEqual(0, self.run_command("reset", "--to-earliest", "--execute")[0])
        self.assertEqual({0}, {each.next_offset for each in self.stored()})

    def test_a_recreated_topic_gets_its_new_id_and_missing_partitions_are_deleted(self):
        self.store(_FIRST, _SECOND, next_offset=900, topic_id="former")
        self.cluster.log = {_FIRST: (0, 20)}
        status, rows = self.run_json("reset", "--to-earliest", "--execute")
        self.assertEqual((0, {"database"}), (status, {row["kept_in"] for row in rows}))
        self.assertEqual({StoredOffset(_GROUP, "metrics", 0, "first", 0)}, self.stored())
        self.assertEqual([(_GROUP, {_FIRST: 0})], self.cluster.altered)
        self.assertEqual((0, [""]), self.states())

    def states(self):
        status, out, _ = self.run_command("show", "-f", "json")
        return status, [each["problem"] for each in json.loads(out)]

    def test_other_partitions_of_a_recreated_topic_are_named(self):
        self.store(_FIRST, _SECOND, topic_id="former")
        status, _, err = self.run_command("reset", "--to-earliest", "--topic", "metrics:0", "--execute")
        self.assertEqual(0, status)
        self.assertIn("which still have offsets of the former topic: metrics/1\n", err)
        self.assertIn(StoredOffset(_GROUP, "metrics", 1, "former", 50), self.stored())

    def test_a_group_with_members_is_refused_also_by_the_dry_run(self):
        self.store(_FIRST)
        self.cluster.members = [("persister-1", "/10.0.0.7")]
        before = self.stored()
        for extra in ([], ["--execute"]):
            status, _, error = self.run_command("reset", "--to-earliest", *extra)
            self.assertEqual(1, status)
            self.assertIn("1 member", error)
            self.assertIn("persister-1 at 10.0.0.7", error)
        self.assertEqual((before, []), (self.stored(), self.cluster.altered))

    def test_other_groups_and_topics_are_unchanged(self):
        self.store(_FIRST, TopicPartition("other", 0))
        self.store(_FIRST, group="another")
        self.run_command("reset", "--to-latest", "--execute")
        self.assertIn(StoredOffset(_GROUP, "other", 0, "first", 50), self.stored())
        self.assertIn(StoredOffset("another", "metrics", 0, "first", 50), self.stored())
        self.assertIn(StoredOffset(_GROUP, "metrics", 0, "first", 100), self.stored())

    def test_partitions_of_a_topic_can_be_named_one_after_the_other(self):
        one, other, both = (("--topic", f"metrics{each}") for each in (":0", ":1", ""))
        for named in ((*one, *other), (*one, *both), (*both, *one)):
            _, rows = self.run_json("reset", "--to-latest", "--execute", *named)
            self.assertEqual([0, 1], [row["partition"] for row in rows], named)

    def test_a_time_after_the_last_message_is_the_end(self):
        self.store(_FIRST)
        arguments = ("reset", "--to-datetime", "2026-01-31T06:00:00Z", "--topic", "metrics:0")
        for found, target in ((70, 70), (None, 100)):
            self.cluster.later = found
            self.assertEqual(target, self.run_json(*arguments)[1][0]["target"])

    def targets(self, *arguments):
        status, rows = self.run_json("reset", *arguments)
        self.assertEqual(0, status)
        return {row["partition"]: row["target"] for row in rows}

    def test_a_duration_is_a_time_before_now(self):
        self.store(_FIRST, _SECOND)
        asked = []
        self.cluster.offsets_for_times = lambda times_ms: asked.append(times_ms) or dict.fromkeys(times_ms, 70)
        self.assertEqual({0: 70, 1: 70}, self.targets("--by-duration", "2h"))
        self.targets("--by-duration", "99999d")
        self.assertEqual({0}, set(asked.pop().values()))
        self.assertAlmostEqual(time.time() - 7200, asked[0][_FIRST] / 1000, delta=60)

    def test_a_duration_has_a_unit(self):
        for text in ("90", "m", "-5m", "1.5h", "2w"):
            self.assertEqual(2, self.run_command("reset", f"--by-duration={text}")[0])

    def test_an_offset_outside_the_log_is_refused_with_the_range(self):
        self.store(_FIRST, _SECOND)
        self.cluster.log[_SECOND] = (40, 60)
        status, _, error = self.run_command("reset", "--to-offset", "70", "--execute")
        self.assertEqual(1, status)
        self.assertIn("metrics/1 has offsets from 40 to 60, but not 70", error)
        self.assertEqual(0, self.run_command("reset", "--to-offset", "60", "--execute")[0])
        self.assertEqual({60}, {each.next_offset for each in self.stored()})

    def test_a_position_written_only_to_the_database_is_reported(self):
        self.store(_FIRST)
        self.cluster.refusal = TransportError("no coordinator")
        status, _, error = self.run_command("reset", "--to-earliest", "--execute")
        self.assertEqual(1, status)
        self.assertIn("the database has the new offsets", error)
        self.assertIn(StoredOffset(_GROUP, "metrics", 0, "first", 0), self.stored())

    def test_a_member_that_joins_during_the_write_commits_the_position_in_kafka(self):
        self.store(_FIRST)
        self.cluster.refusal = TransportError("Unknown member", name="UNKNOWN_MEMBER_ID")
        status, _ = self.run_json("reset", "--to-earliest", "--execute", "--topic", "metrics:0")
        self.assertEqual(0, status)
        self.assertEqual({StoredOffset(_GROUP, "metrics", 0, "first", 0)}, self.stored())

    def test_a_group_that_a_member_joins_concurrently_is_not_reset(self):
        self.cluster.committed = {_FIRST: 10}
        self.cluster.refusal = TransportError("Unknown member", name="UNKNOWN_MEMBER_ID")
        status, _, error = self.run_command("reset", "--to-earliest", "--execute")
        self.assertEqual((1, True), (status, "Unknown member" in error), error)


class TestOpenTransactions(OffsetsCase):
    def test_a_reader_of_uncommitted_messages_can_continue(self):
        self.cluster.committed = {_FIRST: 105, _SECOND: 105}
        self.cluster.written = {_FIRST: 105, _SECOND: 104}
        status, rows = self.run_json("show", "--kept-in", "kafka")
        self.assertEqual(1, status)
        found = [(row["end"], row["problem"]) for row in rows]
        self.assertEqual([(100, ""), (100, "beyond the end of the log")], found)


class TestCopies(OffsetsCase):
    def test_a_different_position_in_kafka_is_shown_with_the_authoritative_position(self):
        self.store(_FIRST, _SECOND)
        self.cluster.committed = {_FIRST: 40, _SECOND: 50}
        rows = self.run_json("show")[1]
        self.assertEqual([(50, 40), (50, 50)], [(row["stored"], row["in_kafka"]) for row in rows])


class TestGroupsInKafka(OffsetsCase):
    def test_a_group_without_stored_positions_is_reset_in_kafka(self):
        self.cluster.committed = {_FIRST: 10, _SECOND: 10}
        status, rows = self.run_json("reset", "--to-earliest", "--execute")
        self.assertEqual((0, {"kafka"}), (status, {row["kept_in"] for row in rows}))
        self.assertEqual([(_GROUP, {_FIRST: 0, _SECOND: 0})], self.cluster.altered)
        self.assertEqual(set(), self.stored())

    def test_without_a_database_the_positions_of_kafka_count(self):
        self.configure("[kafka_mine]\ntopic = metrics\ngroup_id = mine\n")
        status, _, err = self.run_command("reset", "--to-latest", "--execute", group="mine")
        self.assertEqual(0, status)
        self.assertIn("kept in Kafka\n", err)
        self.assertEqual([("mine", {_FIRST: 100, _SECOND: 100})], self.cluster.altered)
        status, _, error = self.run_command("reset", "--to-latest", "--kept-in", "database", group="mine")
        self.assertEqual((1, True), (status, "no [database] connection" in error))

    def test_a_database_of_another_schema_is_not_treated_as_empty(self):
        connection = f"[database]\nconnection = sqlite:///{self.folder}/not-made.sqlite\n"
        self.configure(self.consumer + connection)
        status, _, error = self.run_command("reset", "--to-latest", "--execute")
        self.assertEqual((1, []), (status, self.cluster.altered))
        self.assertIn("run `monasca-common db upgrade`, or use --kept-in kafka for a group", error)
        self.assertEqual(0, self.run_command("reset", "--to-latest", "--execute", "--kept-in", "kafka")[0])

    def test_the_operator_selects_the_authoritative_positions(self):
        self.store(_FIRST)
        self.run_command("reset", "--to-earliest", "--execute", "--kept-in", "kafka")
        self.assertEqual({50}, {each.next_offset for each in self.stored()})
        self.run_command("reset", "--to-latest", "--execute", "--kept-in", "database", "--topic", "metrics:1")
        self.assertIn(StoredOffset(_GROUP, "metrics", 1, "first", 100), self.stored())

    def test_the_brokers_of_the_consumer_with_this_group_id_are_used(self):
        self.run_command("show")
        self.run_command("show", "--topic", "metrics", group="unknown")
        self.assertEqual(["kafka_metrics", "kafka"], self.sections)


class TestUsage(OffsetsCase):
    def test_show_ends_with_status_1_if_a_reader_cannot_continue(self):
        self.store(_FIRST, _SECOND)
        self.assertEqual(0, self.run_command("show")[0])
        self.cluster.log[_SECOND] = (60, 100)
        status, rows = self.run_json("show")
        self.assertEqual((1, ["", "10 deleted unread"]), (status, [row["problem"] for row in rows]))

    def test_the_partitions_are_printed_in_each_format(self):
        self.store(_FIRST)
        self.cluster.committed = {_FIRST: 50}
        shown = {
            "topic": "metrics",
            "partition": 0,
            "kept_in": "database",
            "stored": 50,
            "first": 0,
            "end": 100,
            "problem": "",
        }
        moved = {**shown, "target": 100, "skipped": 50, "read_again": 0}
        for words, expected in (
            (("show",), {**shown, "in_kafka": 50, "left": 50}),
            (("reset", "--to-latest"), moved),
        ):
            for name, parse in (("json", json.loads), ("yaml", yaml.safe_load)):
                status, out, err = self.run_command(*words, "--topic", "metrics:0", "-f", name)
                self.assertEqual((0, [expected]), (status, parse(out)))
                self.assertIn("kept in the database", err)
            _, out, _ = self.run_command(*words, "--topic", "metrics:0", "-f", "csv")
            as_text = {column: str(value) for column, value in expected.items()}
            self.assertEqual([as_text], list(csv.DictReader(io.StringIO(out))))

    def test_a_missing_topic_or_partition_is_named(self):
        for arguments, group, named in (
            (["--topic", "metricks"], _GROUP, "topic 'metricks' does not exist"),
            (["--topic", "metrics:0,7"], _GROUP, "2 partitions, but no partition 7"),
            ([], "unknown", "--topic"),
        ):
            status, _, error = self.run_command("reset", "--to-latest", *arguments, group=group)
            self.assertEqual(1, status)
            self.assertIn(named, error)
            self.assertEqual(1, error.count("\n"), error)

    def test_a_misspelt_option_of_the_group_is_named(self):
        self.configure(self.consumer + "thread = 2\n")
        status, _, error = self.run_command("show")
        self.assertEqual(1, status)
        self.assertIn("'thread'", error)

    def test_a_usage_error_ends_with_status_2(self):
        for arguments in (
            ["reset"],
            ["reset", "--to-earliest", "--to-latest"],
            ["reset", "--to-offset", "-1"],
            ["reset", "--to-datetime", "yesterday"],
            ["reset", "--to-datetime", "1969-12-31T23:59:59.999Z"],
            ["reset", "--to-latest", "--topic", "metrics:a"],
            ["reset", "--to-latest", "--topic", "metrics:"],
        ):
            self.assertEqual(2, self.run_command(*arguments)[0])
