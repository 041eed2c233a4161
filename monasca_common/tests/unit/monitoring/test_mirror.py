# SPDX-License-Identifier: Apache-2.0
"""What a mirror is configured with, what it remembers, and how copies are compared; without a broker."""

import random
from unittest import mock

from oslo_config import cfg
from oslotest import base
from prometheus_client import generate_latest

from monasca_common.kafka.clock import SystemClock
from monasca_common.kafka.errors import ConfigurationError, OffsetOutOfRange
from monasca_common.kafka.message import Batch, Message, Record, TopicPartition
from monasca_common.kafka.settings import ConnectionSettings
from monasca_common.kafka.testing import MemoryKafka
from monasca_common.kafka.transport.memory import VirtualClock
from monasca_common.monitoring.mirror import comparison, mirror
from monasca_common.monitoring.mirror.comparison import ComparedRange, compare_logs
from monasca_common.monitoring.mirror.mirror import Mirror, copy_of
from monasca_common.monitoring.mirror.positions import POSITIONS_TOPIC, MirrorPosition, positions_in
from monasca_common.monitoring.mirror.settings import MirrorSettings, mirror_settings
from monasca_common.monitoring.mirror.status import MirrorStatus
from monasca_common.monitoring.mirror.topics import plan_topics

TP = TopicPartition("metrics", 0)
_CONFIG = {"message.timestamp.type": "CreateTime", "max.message.bytes": "1000", "cleanup.policy": "delete"}


def message(number, *, offset=None, value=None, headers=None, timestamp_ms=None):
    return Message(
        "metrics",
        0,
        number if offset is None else offset,
        1_000 + number if timestamp_ms is None else timestamp_ms,
        b"key",
        b"%d" % number if value is None else value,
        (("message-id", b"id %d" % number),) if headers is None else headers,
    )


def settings(*topics, **options):
    return MirrorSettings(ConnectionSettings("a:1"), ConnectionSettings("b:1"), topics, **options)


class SettingsTest(base.BaseTestCase):
    def read(self, text):
        conf = cfg.ConfigOpts()
        conf(["--config-file", self.create_tempfiles([("mirror", text)], ".conf")[0]])
        return mirror_settings(conf)

    def test_what_is_unset_of_a_connection_is_that_of_kafka(self):
        read = self.read(
            "[kafka]\nbootstrap_servers = a:1\nclient_id = me\n"
            "[mirror_target]\nbootstrap_servers = b:1\n[mirror]\ntopics = metrics, logs-*\n"
        )
        self.assertEqual(("a:1", "b:1", "me"), (*(c.bootstrap_servers for c in (read.source, read.target)), "me"))
        self.assertEqual(("metrics", "logs-*"), read.topics)

    def test_what_cannot_work_is_refused_with_the_option_and_the_remedy(self):
        servers = "[kafka]\nbootstrap_servers = a:1\n"
        target = "[mirror_target]\nbootstrap_servers = b:1\n"
        for text, part in (
            (servers + target, "topics in group [mirror] is not set"),
            (servers + "[mirror]\ntopics = a\n", "are the same: name two clusters"),
            (servers + target + "[mirror]\ntopics = a b\n", "has 'a b'"),
            (servers + target + "[mirror]\ntopics = a\nname = a/b\n", "name in group [mirror] is 'a/b'"),
            (servers + target + "[mirror]\ntopics = a\nbatch_size = 0\n", "batch_size in group [mirror]"),
            (servers + target + "group_id = x\n[mirror]\ntopics = a\n", "group_id"),
        ):
            self.assertIn(part, str(self.assertRaises(ConfigurationError, self.read, text)))

    def test_patterns_choose_topics_and_never_those_of_kafka(self):
        chosen = settings("metrics", "log?-*")
        names = ("metrics", "metrics2", "logs-1", "log-1", "__consumer_offsets")
        self.assertEqual(["metrics", "logs-1"], [name for name in names if chosen.matches(name)])
        self.assertEqual(("metrics",), chosen.named)
        self.assertFalse(settings("*").matches("__consumer_offsets"))


class PlanTest(base.BaseTestCase):
    def admin(self, **topics):
        """``topics``: partitions by name."""
        counts = dict(topics)
        admin = mock.Mock(partition_counts=lambda: counts)
        admin.topic_configs = lambda names: {name: dict(_CONFIG) for name in names}
        admin.topic_ids = lambda names, _: {name: f"id of {name}" for name in names if name in counts}
        admin.create_topic = mock.Mock(side_effect=lambda name, count, **_: counts.update({name: count}))
        return admin

    def test_a_missing_topic_is_created_with_as_many_partitions(self):
        source, target = self.admin(metrics=3, other=1), self.admin()
        plan = plan_topics(settings("met*", replication_factor=2), source, target)
        (topic,) = plan.topics
        self.assertEqual(("metrics", 3), (topic.name, topic.partitions))
        (call,) = target.create_topic.call_args_list
        self.assertEqual((("metrics", 3), 2), (call.args, call.kwargs["replication_factor"]))
        self.assertEqual("CreateTime", call.kwargs["config"]["message.timestamp.type"])

    def test_one_topic_that_is_refused_leaves_the_others(self):
        plan = plan_topics(settings("*", "gone"), self.admin(a=2, b=2), self.admin(a=1, b=3))
        self.assertEqual(["b"], [topic.name for topic in plan.topics])
        self.assertEqual({"a", "gone"}, set(plan.refused))
        self.assertIn("add partitions", plan.refused["a"])

    def test_a_target_that_would_change_or_refuse_messages_is_refused(self):
        for change, part in (
            ({"message.timestamp.type": "LogAppendTime"}, "CreateTime"),
            ({"max.message.bytes": "9"}, "9"),
        ):
            target = self.admin(a=1)
            target.topic_configs = lambda names, change=change: dict.fromkeys(names, _CONFIG | change)
            plan = plan_topics(settings("a"), self.admin(a=1), target)
            self.assertIn(part, plan.refused["a"])


class PositionsTest(base.BaseTestCase):
    def records(self, *records):
        return [
            Message(POSITIONS_TOPIC, 0, offset, 1, record.key, record.value, ())
            for offset, record in enumerate(records)
        ]

    def test_the_last_of_each_partition_and_mirror_counts_and_others_are_passed_over(self):
        one, other = (MirrorPosition(name, TP, 3, 7, "s", "t") for name in ("one", "other"))
        later = MirrorPosition("one", TP, 3, 9, "s", "t")
        foreign = Record(b"[]", key=b"{}")
        found = positions_in(self.records(one.record(), other.record(), foreign, later.record(), other.withdrawn()))
        self.assertEqual({("one", TP): later}, found)


class CopyTest(base.BaseTestCase):
    def test_a_copy_has_everything_of_its_message_and_its_id_stays_a_header(self):
        original = message(5, headers=(("a", None), ("message-id", b"x"), ("b", b"")))
        record = copy_of(original)
        self.assertEqual((b"5", b"key", original.headers, 1_005, 0, None), _facts(record))

    def test_a_time_that_no_producer_writes_is_left_to_the_client(self):
        self.assertEqual([None, None], [copy_of(message(1, timestamp_ms=time)).timestamp_ms for time in (0, -1)])


class SkipTest(base.BaseTestCase):
    def test_what_comes_with_the_news_of_a_gap_is_copied_as_well(self):
        other = mock.Mock(topic_partition=TopicPartition("metrics", 1))
        polled = Batch((other,), (OffsetOutOfRange(TP, 2),))
        consumer = mock.Mock(poll=lambda *_: polled)
        status = mock.Mock()
        with mock.patch.object(mirror, "open_admin", lambda _: mock.Mock(first_offsets=lambda _: {TP: 4})):
            skipping = Mirror(settings("metrics", skip_deleted=True), status, VirtualClock())
        batch = skipping._poll(consumer, {TP: MirrorPosition("m", TP, 0, 2, "s", "t")})
        self.assertEqual((other,), batch.partitions)
        consumer.seek.assert_called_once_with(TP, 4)
        status.skipped.assert_called_once_with("metrics", 2)


class PaceTest(base.BaseTestCase):
    def test_bytes_take_as_long_as_the_rate_says_and_the_loop_turns_meanwhile(self):
        clock = VirtualClock()
        status = mock.Mock()
        stopping = mock.Mock(wait=lambda seconds: clock.advance(seconds))
        with mock.patch.object(mirror, "open_admin"):
            paced = Mirror(settings("a", max_bytes_per_second=1000), status, clock)
            free = Mirror(settings("a"), status, clock)
        began = clock.monotonic()
        clock.advance(0.5)
        free._pace(5000, began, stopping)
        self.assertEqual(0.5, clock.monotonic() - began)
        paced._pace(5000, began, stopping)
        self.assertEqual((5.0, 5), (clock.monotonic() - began, status.turn.turned.call_count))


class VerbatimTest(base.BaseTestCase):
    def test_headers_are_written_as_they_are_and_messages_with_one_id_are_not_one(self):
        kafka = self.useFixture(MemoryKafka())
        kafka.broker.create_topic("copies")
        producer = kafka.producer(verbatim=True)
        headers = (("a", b"1"), ("message-id", b"x"), ("message-id", b"y"), ("a", None))
        for _ in range(2):
            producer.send("copies", Record(b"v", headers=headers))
        producer.send("copies", b"bare")
        producer.flush(10.0).raise_for_undelivered()
        producer.publish("copies", [b"bare", Record(b"v")], timeout=10.0).raise_for_undelivered()
        found = [tuple(each.headers) for each in kafka.broker.records("copies")]
        self.assertEqual([headers, headers, (), (), ()], found)


class ComparisonTest(base.BaseTestCase):
    def compare(self, source, target, *, copied=1_000_000, **lost):
        return compare_logs(ComparedRange(TP, 0, 10**6, 0, 10**6, copied, **lost), source, target)

    def test_equal_logs_with_other_offsets_are_equal(self):
        found = self.compare(map(message, range(50)), (message(n, offset=2 * n) for n in range(50)))
        self.assertEqual((50, 50, 50, []), (found.source, found.target, found.equal, found.differences))

    def test_each_part_of_a_message_counts(self):
        changes = {"value": b"x", "timestamp_ms": 7, "headers": (("message-id", b"id 1"), ("more", None))}
        for name, change in changes.items():
            (found,) = self.compare([message(1)], [message(1, offset=4, **{name: change})]).differences
            self.assertEqual(("altered", 1, 4, b"id 1", (name,)), _difference(found))

    def test_an_empty_header_or_value_is_not_a_missing_one(self):
        for one, other in ((b"", None), ((("a", b""),), (("a", None),))):
            kind = "headers" if isinstance(one, tuple) else "value"
            pair = (Message("metrics", 0, 0, 1, None, b"", ()) for _ in range(2))
            pair = [_with(each, kind, change) for each, change in zip(pair, (one, other), strict=True)]
            self.assertEqual(["missing", "extra"], [d.kind for d in self.compare(pair[:1], pair[1:]).differences])

    def test_random_losses_doubles_and_alterations_are_found_exactly(self):
        for seed in range(30):
            chance = random.Random(seed)
            lost, doubled, altered = (set(part) for part in _three(chance.sample(range(200), 12)))
            copies = []
            for n in range(200):
                if n not in lost:
                    copies.append(message(n, value=b"?" if n in altered else None))
                copies += [message(n)] if n in doubled else []
            target = [_with(each, "offset", offset) for offset, each in enumerate(copies)]
            found = self.compare(map(message, range(200)), target)
            ids = {kind: {d.message_id for d in found.differences if d.kind == kind} for kind in _KINDS}
            wanted = zip(_KINDS, (lost, doubled, altered), strict=True)
            self.assertEqual({kind: {b"id %d" % n for n in numbers} for kind, numbers in wanted}, ids)
            self.assertEqual(12, len(found.differences))

    def test_what_is_not_copied_yet_is_behind_and_may_be_there_already(self):
        found = self.compare(map(message, range(10)), map(message, range(7)), copied=5)
        self.assertEqual((7, 3, []), (found.equal, found.behind, found.differences))

    def test_what_a_cluster_deleted_is_expired_and_what_is_lost_behind_it_is_not(self):
        left = [message(n) for n in range(4, 10)]
        found = self.compare(left, map(message, range(10)), source_lost_its_beginning=True)
        self.assertEqual((4, []), (found.expired, found.differences))
        found = self.compare(map(message, range(10)), [*left[:2], *left[3:]], target_lost_its_beginning=True)
        self.assertEqual((4, [6]), (found.expired, [each.source_offset for each in found.differences]))

    def test_too_much_without_a_counterpart_is_not_compared(self):
        with mock.patch.object(comparison, "_MOST_UNMATCHED", 5):
            found = self.compare(map(message, range(20)), [])
        self.assertIn("more than 5 messages", found.not_compared)


class StatusTest(base.BaseTestCase):
    def test_what_was_copied_what_is_left_and_what_hinders_it(self):
        status = MirrorStatus(SystemClock())
        self.assertEqual((False, "it has not begun"), (status.health()[0], status.trouble))
        status.trouble, status.lag = "", lambda: {"metrics": 5}
        status.committed("metrics", 3, 300, 1)
        status.refused = {"logs": "why"}
        text = generate_latest(status.registry).decode()
        for line in ('messages_total{topic="metrics"} 3.0', 'lag{topic="metrics"} 5.0', "copying 1.0"):
            self.assertIn(f"monasca_mirror_{line}", text)
        self.assertEqual((False, {"logs": "why"}), (status.health()[0], status.health()[1]["refused"]))


_KINDS = ("missing", "extra", "altered")


def _three(numbers):
    return numbers[:4], numbers[4:8], numbers[8:]


def _with(made, name, value):
    fields = {field: getattr(made, field) for field in made.__slots__} | {name: value}
    return Message(**fields)


def _facts(record):
    return record.value, record.key, record.headers, record.timestamp_ms, record.partition, record.message_id


def _difference(found):
    return found.kind, found.source_offset, found.target_offset, found.message_id, found.fields
