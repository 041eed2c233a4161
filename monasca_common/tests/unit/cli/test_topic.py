# SPDX-License-Identifier: Apache-2.0
"""``monasca-common topic`` with an in-memory broker and its admin client."""

import argparse
import csv
import io
import json

import yaml
from oslotest import base

from monasca_common.cli import messages, topic_messages
from monasca_common.cli import topic as topic_commands
from monasca_common.cli.topic_messages import draw_offsets
from monasca_common.kafka import Message, Record, RetriableError, TopicPartition, TransportError, plugins
from monasca_common.kafka.testing import MemoryKafka
from monasca_common.kafka.transport.admin import TopicDescription
from monasca_common.tests.unit.cli.command_case import CommandCase

_CONFIGURATION = """\
[kafka]
driver = memory
bootstrap_servers = memory:9092
"""
_FIRST, _SECOND = TopicPartition("metrics", 0), TopicPartition("metrics", 1)


class MemoryAdmin:
    """An admin client of an in-memory broker. ``leaders``: the leader of each partition, by default broker 1. Replicas
    are on the brokers 1 to 3."""

    def __init__(self, broker):
        self.broker = broker
        self.leaders = {}
        self.in_sync = (1, 2, 3)
        self.refusal = None
        self.created = []
        self.requests = 0
        self.moving = 0  # the number of responses without a leader

    def counts(self):
        return {name: len(self.broker.find_topic(name).partitions) for name in self.broker.topics()}

    def partition_counts(self):
        self.requests += 1
        return self.counts()

    def describe_topics(self, names):
        self.requests += 1
        counts = self.counts()
        return {
            name: TopicDescription(
                name,
                f"id of {name}",
                counts[name],
                tuple(self.leaders.get(TopicPartition(name, number), 1) for number in range(counts[name])),
                ((1, 2, 3),) * counts[name],
                (self.in_sync,) * counts[name],
            )
            for name in names
        }

    def first_offsets(self, partitions):
        self.requests += 1
        if self.moving:
            self.moving -= 1
            raise RetriableError("Not leader for partition")
        return {each: self.broker.watermarks(each)[0] for each in partitions}

    def end_offsets(self, partitions):
        self.requests += 1
        return {each: self.broker.watermarks(each)[1] for each in partitions}

    def offsets_for_times(self, times_ms):
        found = {}
        for partition, time_ms in times_ms.items():
            later = [each.offset for each in self.broker.records(*partition) if each.timestamp_ms >= time_ms]
            found[partition] = min(later, default=None)
        return found

    def topic_configs(self, names):
        return {name: {"retention.ms": "1000", "cleanup.policy": "delete"} for name in names}

    def create_topic(self, name, partitions, *, replication_factor, config, validate_only):
        if self.refusal is not None:
            raise self.refusal
        if not validate_only:
            self.created.append((name, partitions, replication_factor, config))


class TopicCase(CommandCase):
    command = ("topic",)
    configuration = _CONFIGURATION

    def setUp(self):
        super().setUp()
        self.kafka = self.useFixture(MemoryKafka())
        self.admin = MemoryAdmin(self.kafka.broker)
        self.patch(plugins, "load_admin", lambda conf, section: self.admin)
        self.kafka.broker.create_topic("metrics", 2)

    def fill(self, count, partition=0):
        records = [
            Record(
                json.dumps({"n": number}).encode(),
                key=(b"even", b"odd")[number % 2],
                headers=(("room", b"hall"),),
                partition=partition,
                timestamp_ms=(number + 1) * 1000,
            )
            for number in range(count)
        ]
        self.kafka.producer().publish("metrics", records).raise_for_undelivered()

    def offsets(self, *arguments):
        return [(each["partition"], each["offset"]) for each in self.lines(*arguments)]


class ListTest(TopicCase):
    def test_a_misspelt_group_of_options_is_refused(self):
        status, out, err = self.run_command("list", "--section", "kafka_metrcs")
        self.assertEqual((2, ""), (status, out))
        self.assertIn("--section kafka_metrcs: the configuration has no group [kafka_metrcs]: correct", err)
        text = f"{_CONFIGURATION}[kafka_metrics]\ntopic = metrics\n"
        self.assertEqual(0, self.run_command("list", "--section", "kafka_metrics", text=text)[0])

    def test_each_format_has_the_same_rows(self):
        self.fill(3)
        for words in (("list",), ("show", "metrics")):
            _, rows = self.run_json(*words)
            self.assertEqual(rows, yaml.safe_load(self.run_command(*words, "-f", "yaml")[1]))
            _, out, _ = self.run_command(*words, "-f", "csv")
            as_text = [{column: str(value) for column, value in row.items()} for row in rows]
            self.assertEqual(as_text, list(csv.DictReader(io.StringIO(out))))

    def test_a_thousand_topics_need_no_more_requests_than_one(self):
        for number in range(1000):
            self.kafka.broker.create_topic(f"many-{number}", 3)
        status, rows = self.run_json("list")
        self.assertEqual((0, 1001, 4), (status, len(rows), self.admin.requests))

    def test_changed_leaders_are_queried_again(self):
        self.patch(topic_commands, "_LOOK_AGAIN_SECONDS", 0.0)
        self.admin.moving = 2
        self.assertEqual(0, self.run_json("list")[0])
        self.patch(topic_commands, "_SETTLE_SECONDS", 0.0)
        self.admin.moving = 1
        status, _, err = self.run_command("list")
        self.assertEqual((2, True), (status, "Not leader" in err))

    def test_messages_are_counted_and_problems_are_reported(self):
        self.fill(5)
        self.kafka.broker.delete_records("metrics", 0, 2)
        self.admin.in_sync = (1, 2)
        self.admin.leaders[TopicPartition("metrics", 1)] = None
        status, (row,) = self.run_json("list")
        self.assertEqual((1, 3, "1 without a leader; 2 with a copy behind"), (status, row["messages"], row["state"]))
        status, rows = self.run_json("show", "metrics")
        self.assertEqual((1, None, None), (status, rows[1]["leader"], rows[1]["end"]))
        self.assertEqual(("1,2,3", "1,2", 2, 5, 3), tuple(list(rows[0].values())[2:]))

    def test_internal_topics_are_shown_on_request(self):
        self.kafka.broker.create_topic("__consumer_offsets", 1)
        self.assertEqual(1, len(self.run_json("list")[1]))
        self.assertEqual(2, len(self.run_json("list", "--internal")[1]))

    def test_only_a_name_that_matches_no_topic_ends_with_status_3(self):
        self.assertEqual(3, self.run_json("list", "--name", "x*")[0])
        self.kafka.broker.delete_topic("metrics")
        self.assertEqual((0, []), self.run_json("list"))

    def test_a_missing_topic_is_named(self):
        for command in ("show", "tail", "sample"):
            status, _, err = self.run_command(command, "nothing")
            self.assertEqual((2, True), (status, "nothing: this topic does not exist" in err))

    def test_settings_are_sorted_by_name(self):
        _, rows = self.run_json("show", "metrics", "--settings")
        self.assertEqual(["cleanup.policy", "retention.ms"], [row["setting"] for row in rows])


class CreateTest(TopicCase):
    def test_a_topic_is_created_as_requested(self):
        arguments = ("create", "new", "--partitions", "3", "--setting", "a=b=c")
        remark = "monasca-common topic create: nothing was changed: use --execute to apply\n"
        self.assertEqual((0, "new: can be created\n", remark), self.run_command(*arguments))
        self.assertEqual([], self.admin.created)
        self.assertEqual((0, "new: created\n", ""), self.run_command(*arguments, "--execute"))
        self.assertEqual([("new", 3, -1, {"a": "b=c"})], self.admin.created)

    def test_a_refusal_ends_with_status_1_and_a_cluster_that_does_not_respond_with_2(self):
        for refusal, status in ((TransportError("no"), 1), (RetriableError("late"), 2)):
            self.admin.refusal = refusal
            self.assertEqual(status, self.run_command("create", "new", "--partitions", "1", "--execute")[0])

    def test_invalid_input_is_a_usage_error(self):
        for name, count in (("a b", "1"), ("new", "0"), ("new", "99999999999")):
            self.assertEqual(2, self.run_command("create", name, "--partitions", count)[0], (name, count))
        self.assertEqual(2, self.run_command("create", "new")[0])
        self.assertEqual(2, self.run_command("create", "new", "--partitions", "1", "--setting", "nonsense")[0])


class MessagesTest(TopicCase):
    def setUp(self):
        super().setUp()
        self.fill(10)

    def test_a_tail_starts_at_the_requested_position(self):
        self.assertEqual(10, len(self.offsets("tail", "metrics", "--from-beginning", "--no-follow")))
        self.assertEqual([(0, 8), (0, 9)], self.offsets("tail", "metrics:0", "--last", "2", "--no-follow"))
        since = ("--since", "1970-01-01T00:00:08Z")
        self.assertEqual([(0, 7), (0, 8), (0, 9)], self.offsets("tail", "metrics", *since, "--no-follow"))
        self.assertEqual([(0, 7)], self.offsets("tail", "metrics", *since, "--count", "1"))

    def test_a_tail_accepts_a_selection(self):
        tail = ("tail", "metrics", "--from-beginning", "--no-follow")
        words = ("--key", "odd", "--header", "room=hall", "--field", "n=3")
        self.assertEqual([(0, 3)], self.offsets(*tail, *words))
        status, _, err = self.run_command(*tail, "--key", "none")
        self.assertEqual((3, True), (status, "no message is selected" in err))

    def test_an_interrupt_ends_a_tail(self):
        def interrupted(message, parsed_args):
            raise KeyboardInterrupt

        self.patch(topic_messages.messages, "is_selected", interrupted)
        self.assertEqual(0, self.run_command("tail", "metrics", "--from-beginning")[0])

    def test_a_sample_has_different_messages_of_all_partitions(self):
        self.fill(10, partition=1)
        self.assertEqual(7, len(set(self.offsets("sample", "metrics", "--count", "7"))))
        self.assertEqual(20, len(self.offsets("sample", "metrics", "--count", "100")))

    def test_offsets_without_a_message_are_skipped(self):
        self.kafka.broker.skip_offsets("metrics", 0, 90)
        self.fill(1)
        drawn = self.offsets("sample", "metrics:0", "--count", "101")
        self.assertEqual((11, (0, 100)), (len(drawn), drawn[-1]))

    def test_missing_partitions_are_named(self):
        status, _, err = self.run_command("tail", "metrics:0,7")
        self.assertEqual((2, True), (status, "has 2 partitions, but no partition 7" in err))
        self.assertEqual(2, self.run_command("sample", "metrics", "--count", "1001")[0])


def message(value=b"x", *, key=b"k", headers=(), time_ms=1000):
    return Message("metrics", 0, 0, time_ms, key, value, tuple(headers))


def parsed(*arguments):
    parser = argparse.ArgumentParser()
    messages.add_selection(parser)
    messages.add_payload(parser)
    return parser.parse_args(arguments)


class DrawingTest(base.BaseTestCase):
    def test_offsets_are_drawn_from_all_partitions_without_repeats(self):
        starts, ends = {_FIRST: 10, _SECOND: 0}, {_FIRST: 20, _SECOND: 10}
        drawn = draw_offsets(starts, ends, 15)
        self.assertEqual(15, sum(len(set(offsets)) for offsets in drawn.values()))
        for partition, offsets in drawn.items():
            self.assertEqual(sorted(offsets), offsets)
            self.assertLessEqual(set(offsets), set(range(starts[partition], ends[partition])))

    def test_a_sample_is_never_larger_than_the_log(self):
        starts, ends = {_FIRST: 10, _SECOND: 5}, {_FIRST: 12, _SECOND: 5}
        self.assertEqual({_FIRST: [10, 11]}, draw_offsets(starts, ends, 9))
        self.assertEqual({}, draw_offsets({_SECOND: 5}, {_SECOND: 5}, 9))


class SelectionTest(base.BaseTestCase):
    def test_keys_and_headers_are_compared_as_bytes(self):
        one = message(key=b"\xff", headers=[("room", b"\xfe")])
        arguments = ("--key", "\udcff", "--header", "room=\udcfe")
        self.assertTrue(messages.is_selected(one, parsed(*arguments)))

    def test_each_condition_has_to_be_met(self):
        one = message(
            b'{"metric": {"name": "cpu", "tags": ["a", "b"], "n": 1.5, "on": true}}', headers=[("room", b"hall")]
        )
        for meant, arguments in (
            (True, ()),
            (True, ("--key", "k", "--header", "room=hall", "--header", "room")),
            (True, ("--field", "metric.name=cpu", "--field", "metric.tags.1=b", "--field", "metric.n=1.5")),
            (True, ("--field", "metric.on=true")),
            (True, ("--since", "1970-01-01T00:00:01Z", "--until", "1970-01-01T00:00:02Z")),
            (False, ("--key", "kk")),
            (False, ("--header", "room=kitchen")),
            (False, ("--field", "metric.name=cpu", "--field", "metric.name=disk")),
            (False, ("--field", "metric.tags.7=b")),
            (False, ("--field", "metric.tags.x=b")),
            (False, ("--field", "metric.name.deeper=x")),
            (False, ("--until", "1970-01-01T00:00:01Z")),
        ):
            self.assertEqual(meant, messages.is_selected(one, parsed(*arguments)), arguments)

    def test_a_value_that_is_not_json_has_no_field(self):
        for value in (None, b"", b"{", b"\xff", b"[" * 100_000):
            self.assertFalse(messages.is_selected(message(value), parsed("--field", "a=1")))


class ViewTest(base.BaseTestCase):
    def test_payloads_are_shown_only_on_request(self):
        one = message(b"confidential", key=b"whose", headers=[("room", b"hall")])
        reported = f"{messages.message_facts(one, one, parsed())} {list(messages.message_lines(one, one, parsed()))}"
        for hidden in ("confidential", "whose", "hall"):
            self.assertNotIn(hidden, reported)

    def test_headers_with_secrets_are_masked_and_long_values_truncated(self):
        names = ("Authorization", "x-auth-token", "Cookie", "DB_PASSWORD", "client-secret", "api_key", "credentials")
        one = message("é".encode() * 300, headers=[*((name, b"hidden") for name in names), ("empty", None)])
        facts = messages.message_facts(one, one, parsed("--payload", "--payload-characters", "3"))
        self.assertEqual([[name, "***"] for name in names], facts["headers"][:-1])
        self.assertEqual((["empty", None], "ééé… (600 B)"), (facts["headers"][-1], facts["value"]))

    def test_control_characters_are_shown_as_text(self):
        title = message(b"\x1b]0;title\x07")
        (_, _, value) = messages.message_lines(title, title, parsed("--payload"))
        self.assertEqual("  value   \\x1b]0;title\\x07", value)
