# SPDX-License-Identifier: Apache-2.0
"""The configuration of a mirror, its positions, and the comparison of copies, without a broker."""

import random
import threading
from unittest import mock

import fixtures
from oslo_config import cfg
from oslotest import base
from prometheus_client import generate_latest

from monasca_common.kafka.clock import SystemClock
from monasca_common.kafka.errors import ConfigurationError, OffsetOutOfRange, RetriableError
from monasca_common.kafka.message import Batch, Message, Record, TopicPartition
from monasca_common.kafka.settings import ConnectionSettings
from monasca_common.kafka.testing import MemoryKafka
from monasca_common.kafka.transport.memory import VirtualClock
from monasca_common.operations.mirror import comparison, mirror, verification
from monasca_common.operations.mirror.comparison import ComparedPartition, compare_logs
from monasca_common.operations.mirror.mirror import Mirror, copy_of
from monasca_common.operations.mirror.positions import POSITIONS_TOPIC, MirrorPosition, positions_in
from monasca_common.operations.mirror.settings import MirrorSettings, mirror_settings
from monasca_common.operations.mirror.status import MirrorStatus
from monasca_common.operations.mirror.topics import MirroredTopic, MirrorPlan, plan_topics
from monasca_common.operations.mirror.verification import MirrorVerification

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

    def test_unset_options_of_a_connection_default_to_kafka(self):
        read = self.read(
            "[kafka]\nbootstrap_servers = a:1\nclient_id = me\n"
            "[mirror_target]\nbootstrap_servers = b:1\n[mirror]\ntopics = metrics, logs-*\n"
        )
        self.assertEqual(("a:1", "b:1", "me"), (*(c.bootstrap_servers for c in (read.source, read.target)), "me"))
        self.assertEqual(("metrics", "logs-*"), read.topics)

    def test_invalid_options_are_refused_with_the_option_and_the_remedy(self):
        servers = "[kafka]\nbootstrap_servers = a:1\n"
        target = "[mirror_target]\nbootstrap_servers = b:1\n"
        for text, part in (
            (servers + target, "topics in group [mirror] is not set"),
            (servers + "[mirror]\ntopics = a\n", "are the same: name two clusters"),
            (servers + target + "[mirror]\ntopics = a b\n", "has 'a b'"),
            (servers + target + "[mirror]\ntopics = a\nname = a/b\n", "name in group [mirror] is 'a/b'"),
            (servers + target + "[mirror]\ntopics = a\nreplication_factor = 2\n", "default.replication.factor"),
            (servers + target + "group_id = x\n[mirror]\ntopics = a\n", "group_id"),
        ):
            self.assertIn(part, str(self.assertRaises(ConfigurationError, self.read, text)))

    def test_patterns_never_select_internal_topics(self):
        chosen = settings("metrics", "log?-*")
        names = ("metrics", "metrics2", "logs-1", "log-1", "__consumer_offsets")
        self.assertEqual(["metrics", "logs-1"], [name for name in names if chosen.matches(name)])
        self.assertEqual(("metrics",), chosen.named)
        self.assertFalse(settings("*").matches("__consumer_offsets"))


class PlanTest(base.BaseTestCase):
    def admin(self, **topics):
        """Return an admin client. ``topics``: the numbers of partitions by topic."""
        counts = dict(topics)
        admin = mock.Mock(partition_counts=lambda: counts)
        admin.topic_configs = lambda names: {name: dict(_CONFIG) for name in names}
        admin.topic_ids = lambda names, _: {name: f"id of {name}" for name in names if name in counts}
        admin.create_topics = mock.Mock(side_effect=lambda partitions, **_: counts.update(partitions))
        return admin

    def plan(self, chosen, source, target):
        return plan_topics(chosen, source, target, threading.Event())

    def test_a_missing_topic_is_created_with_as_many_partitions(self):
        source, target = self.admin(metrics=3, other=1), self.admin()
        plan = self.plan(settings("met*"), source, target)
        (topic,) = plan.topics
        self.assertEqual(("metrics", 3), (topic.name, topic.partitions))
        (call,) = target.create_topics.call_args_list
        self.assertEqual((({"metrics": 3},), -1), (call.args, call.kwargs["replication_factor"]))
        self.assertEqual("CreateTime", call.kwargs["configs"]["metrics"]["message.timestamp.type"])

    def test_many_missing_topics_are_created_in_bulks(self):
        source, target = self.admin(**{f"t{number:03}": 1 for number in range(600)}), self.admin()
        plan = self.plan(settings("t*"), source, target)
        bulks = [call.args[0] for call in target.create_topics.call_args_list]
        self.assertEqual([250, 250, 100], [len(bulk) for bulk in bulks])
        self.assertEqual(600, len(plan.topics))

    def test_a_request_has_fewer_topics_if_they_have_many_partitions(self):
        source, target = self.admin(a=2_000, b=3_000, c=9_000, d=1), self.admin()
        self.plan(settings("*"), source, target)
        bulks = [call.args[0] for call in target.create_topics.call_args_list]
        self.assertEqual([{"a": 2_000, "b": 3_000}, {"c": 9_000}, {"d": 1}], bulks)

    def test_a_stop_takes_effect_between_two_bulks(self):
        source, target = self.admin(**{f"t{number:03}": 1 for number in range(600)}), self.admin()
        stopping = threading.Event()
        target.create_topics.side_effect = lambda *_, **__: stopping.set()
        plan = plan_topics(settings("t*"), source, target, stopping)
        self.assertEqual((1, ()), (target.create_topics.call_count, plan.topics))

    def test_a_refused_topic_does_not_affect_the_others(self):
        plan = self.plan(settings("*", "gone"), self.admin(a=2, b=2), self.admin(a=1, b=3))
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
            plan = self.plan(settings("a"), self.admin(a=1), target)
            self.assertIn(part, plan.refused["a"])


class MirrorStartStopTest(base.BaseTestCase):
    """The steps of an attempt before it opens a client."""

    def test_a_stop_while_topics_are_created_opens_no_client(self):
        def stopped(*_):
            made.stop()
            return MirrorPlan((), {})

        made = Mirror(settings("a"), MirrorStatus(SystemClock()), SystemClock())
        prepared = mock.Mock()
        for name, stand_in in (("check_clusters", mock.Mock()), ("plan_topics", stopped)):
            self.useFixture(fixtures.MonkeyPatch(f"{mirror.__name__}.{name}", stand_in))
        self.useFixture(fixtures.MonkeyPatch(f"{mirror.__name__}.positions.prepare", prepared))
        made.serve()
        self.assertEqual(0, prepared.call_count)


class LeaderlessTest(base.BaseTestCase):
    """A new topic with two partitions, the second of which has no leader."""

    def setUp(self):
        super().setUp()
        self.clock, self.leaders = VirtualClock(), {0: 1, 1: None}
        self.plan = MirrorPlan((MirroredTopic("metrics", 2, "s", "t", 1000),), {})
        source = mock.Mock(leaders=lambda: {"metrics": self.leaders}, first_offsets=self.first_offsets)
        self.status = MirrorStatus(self.clock)
        with mock.patch.object(mirror, "open_admin", lambda _: source):
            self.mirror = Mirror(settings("metrics"), self.status, self.clock)
        for name in ("check_clusters", "open_producer", "open_consumer", "positions"):
            self.useFixture(fixtures.MockPatchObject(mirror, name))
        self.useFixture(fixtures.MockPatchObject(mirror, "plan_topics", return_value=self.plan))

    def first_offsets(self, partitions):
        if any(self.leaders[each.partition] is None for each in partitions):
            raise RetriableError("its leader did not report its offset")
        return dict.fromkeys(partitions, 7)

    def test_the_other_partitions_are_copied_until_it_has_a_leader(self):
        def poll(*_):
            polls.append(self.status.health.ready())
            self.clock.advance(61)
            self.leaders[1] = 1 if len(polls) == 2 else None
            return Batch()

        polls = []
        mirror.positions.read_positions.return_value = {}
        mirror.open_consumer.return_value = mock.Mock(poll=poll, take_ends=dict, lag=lambda _: {})
        self.mirror.serve()
        self.assertEqual([TP], list(mirror.open_consumer.call_args.kwargs["partitions"]))
        reason = "topic metrics is not copied: partition 1 has no leader in the source"
        self.assertEqual([(False, {"ready": False, "reasons": [reason]})] * 2, polls)

    def test_without_any_leader_the_next_attempt_is_made(self):
        self.leaders[0] = None
        mirror.positions.read_positions.return_value = {}
        self.assertRaises(RetriableError, self.mirror.serve)


class PositionsTest(base.BaseTestCase):
    def records(self, *records):
        return [
            Message(POSITIONS_TOPIC, 0, offset, 1, record.key, record.value, ())
            for offset, record in enumerate(records)
        ]

    def test_only_the_last_record_of_each_partition_and_mirror_counts(self):
        one, other = (MirrorPosition(name, TP, 3, 7, "s", "t") for name in ("one", "other"))
        later = MirrorPosition("one", TP, 3, 9, "s", "t")
        foreign = [Record(b"[]", key=key) for key in (b"{}", b'{"x":' + b"[" * 5000, b'{"topic":"\xff"}')]
        found = positions_in(self.records(one.record(), other.record(), *foreign, later.record(), other.withdrawn()))
        self.assertEqual({("one", TP): later}, found)


class CopyTest(base.BaseTestCase):
    def test_a_copy_has_all_fields_of_its_message_and_its_id_stays_a_header(self):
        original = message(5, headers=(("a", None), ("message-id", b"x"), ("b", b"")))
        record = copy_of(original)
        self.assertEqual((b"5", b"key", original.headers, 1_005, 0, None), _facts(record))

    def test_a_time_that_no_producer_writes_is_left_to_the_client(self):
        self.assertEqual([None, None], [copy_of(message(1, timestamp_ms=time)).timestamp_ms for time in (0, -1)])


class SkipTest(base.BaseTestCase):
    def test_messages_returned_with_an_error_are_copied(self):
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

    def test_an_offset_that_the_source_no_longer_has_is_not_a_gap_to_skip(self):
        polled = Batch((), (OffsetOutOfRange(TP, 9),))
        for skips in (False, True):
            with mock.patch.object(mirror, "open_admin", lambda _: mock.Mock(first_offsets=lambda _: {TP: 0})):
                copying = Mirror(settings("metrics", skip_deleted=skips), mock.Mock(), VirtualClock())
            at = {TP: MirrorPosition("m", TP, 0, 9, "s", "t")}
            error = self.assertRaises(ConfigurationError, copying._poll, mock.Mock(poll=lambda *_: polled), at)
            self.assertIn("metrics/0 was copied to offset 9, which is after the end of the source", str(error))
            self.assertNotIn("skip_deleted", str(error))


class VerbatimTest(base.BaseTestCase):
    # Rule 64
    def test_headers_are_unchanged_and_messages_with_the_same_id_are_separate(self):
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
        return compare_logs(ComparedPartition(TP, copied, **lost), source, target)

    def test_equal_logs_with_different_offsets_are_equal(self):
        found = self.compare(map(message, range(50)), (message(n, offset=2 * n) for n in range(50)))
        self.assertEqual((50, 50, 50, []), (found.source, found.target, found.equal, found.differences))

    def test_each_field_of_a_message_is_compared(self):
        changes = {"value": b"x", "timestamp_ms": 7, "headers": (("message-id", b"id 1"), ("more", None))}
        for name, change in changes.items():
            (found,) = self.compare([message(1)], [message(1, offset=4, **{name: change})]).differences
            self.assertEqual(("altered", 1, 4, b"id 1", (name,)), _difference(found))

    def test_an_empty_header_or_value_differs_from_a_missing_one(self):
        for one, other in ((b"", None), ((("a", b""),), (("a", None),))):
            kind = "headers" if isinstance(one, tuple) else "value"
            pair = (Message("metrics", 0, 0, 1, None, b"", ()) for _ in range(2))
            pair = [_with(each, kind, change) for each, change in zip(pair, (one, other), strict=True)]
            self.assertEqual(["missing", "extra"], [d.kind for d in self.compare(pair[:1], pair[1:]).differences])

    # Rule 65
    def test_random_losses_duplicates_and_alterations_are_found_exactly(self):
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

    def test_messages_not_copied_yet_are_behind_and_may_exist_in_the_target(self):
        found = self.compare(map(message, range(10)), map(message, range(7)), copied=5)
        self.assertEqual((7, 3, []), (found.equal, found.behind, found.differences))

    def test_deleted_messages_are_expired_and_later_losses_are_not(self):
        left = [message(n) for n in range(4, 10)]
        found = self.compare(left, map(message, range(10)), source_lost_its_beginning=True)
        self.assertEqual((4, []), (found.expired, found.differences))
        found = self.compare(map(message, range(10)), [*left[:2], *left[3:]], target_lost_its_beginning=True)
        self.assertEqual((4, [6]), (found.expired, [each.source_offset for each in found.differences]))

    def test_too_many_messages_without_a_counterpart_are_not_compared(self):
        with mock.patch.object(comparison, "_MOST_UNMATCHED", 5):
            found = self.compare(map(message, range(20)), [])
        self.assertIn("more than 5 messages", found.not_compared)


class VerificationTest(base.BaseTestCase):
    """In-memory logs. ``self.logs`` maps bootstrap servers to the log of a cluster; the target's offsets have gaps."""

    def verification(self, source, target):
        self.logs = {"a:1": source, "b:1": target}
        self.useFixture(fixtures.MonkeyPatch(f"{verification.__name__}.LogReader", self.reader))
        return MirrorVerification(settings("metrics"), self.admin(source, "s"), self.admin(target, "t"))

    def admin(self, log, topic_id):
        def at_time(times):
            return {TP: next((each.offset for each in log if each.timestamp_ms >= times[TP]), None)}

        return mock.Mock(
            first_offsets=lambda _: {TP: log[0].offset},
            end_offsets=lambda _: {TP: log[-1].offset + 1},
            offsets_for_times=at_time,
            topic_ids=lambda topics, timeout: dict.fromkeys(topics, topic_id),
        )

    def reader(self, connection, **_):
        log = self.logs[connection.bootstrap_servers]
        return mock.Mock(messages=lambda starts, ends: (each for each in log if starts[TP] <= each.offset < ends[TP]))

    def test_messages_that_one_cluster_has_deleted_are_not_differences(self):
        source = [message(n) for n in range(1_000)]
        target = [_with(each, "offset", 2 * n) for n, each in enumerate(source)]
        for left, copies in ((source[300:], target), (source, target[300:])):
            found = self.verification(left, copies).compare(MirrorPosition("mirror", TP, 0, 1_000, "s", "t"))
            self.assertEqual((300, 700, []), (found.expired, found.equal, found.differences))

    def test_messages_before_the_start_of_the_mirror_or_before_since_are_not_compared(self):
        source = [message(n, timestamp_ms=1_000 * n) for n in range(1, 6)]
        target = [_with(each, "offset", n) for n, each in enumerate(source[1:])]
        for since_ms, count in ((None, 4), (3_500, 2)):
            position = MirrorPosition("mirror", TP, 2, 6, "s", "t")
            found = self.verification(source, target).compare(position, since_ms)
            self.assertEqual((count, count, []), (found.source, found.equal, found.differences))

    def test_topics_that_were_recreated_are_not_compared(self):
        checked = self.verification([message(1)], [message(2)])
        for source_id, target_id in (("former", "t"), ("s", "former")):
            found = checked.compare(MirrorPosition("mirror", TP, 0, 2, source_id, target_id))
            self.assertEqual((0, []), (found.source, found.differences))
            self.assertIn("its topic was deleted and recreated", found.not_compared)

    # Rule 66
    def test_compacted_topics_are_not_compared(self):
        checked = self.verification([message(1)], [message(2)])
        for admin, policy in zip((checked._source, checked._target), ("delete", "compact,delete"), strict=True):
            admin.topic_configs = lambda names, policy=policy: {name: {"cleanup.policy": policy} for name in names}
        self.assertEqual({"metrics"}, checked.compacted(["metrics"]))
        found = checked.compare(MirrorPosition("mirror", TP, 0, 2, "s", "t"), is_compacted=True)
        self.assertIn("its topic is compacted", found.not_compared)


class StatusTest(base.BaseTestCase):
    def test_status_has_copied_messages_lag_and_refused_topics(self):
        status = MirrorStatus(SystemClock())
        self.assertEqual((False, "not started yet"), (status.health.health()[0], status.health.reason))
        status.health.reason, status.lag = "", lambda: {"metrics": 5}
        status.committed("metrics", 3, 300, 1)
        status.refused = {"logs": "why"}
        text = generate_latest(status.registry).decode()
        for line in ('messages_total{topic="metrics"} 3.0', 'lag{topic="metrics"} 5.0', "copying 1.0"):
            self.assertIn(f"monasca_mirror_{line}", text)
        self.assertEqual((False, ["topic logs is not copied: why"]), _found(status.health.ready))

    def test_unread_messages_without_copies_are_a_stall(self):
        clock = VirtualClock()
        status = MirrorStatus(clock)
        status.health.reason, status.lag = "", lambda: {"metrics": 5, "logs": 0}
        ready = status.health.ready
        clock.advance(1000.0)
        status.begins(["metrics", "logs"])
        self.assertEqual((True, []), _found(ready))
        clock.advance(61.0)
        self.assertEqual((False, ["STALL: 5 messages left to copy, none copied for 61 s"]), _found(ready))
        status.committed("metrics", 1, 1, 1)
        self.assertEqual((True, []), _found(ready))
        clock.advance(61.0)
        self.assertFalse(ready()[0])
        status.lag = dict
        self.assertEqual((True, []), _found(ready))

    def test_a_hanging_transaction_is_not_live(self):
        clock = VirtualClock()
        status = MirrorStatus(clock)
        live = status.health.live
        clock.advance(601.0)
        self.assertEqual((False, {"mirror": 601.0}), (live()[0], live()[1]["seconds_since_turn"]))
        status.health.turned()
        self.assertTrue(live()[0])


_KINDS = ("missing", "extra", "altered")


def _found(ready):
    is_ready, body = ready()
    return is_ready, body["reasons"]


def _three(numbers):
    return numbers[:4], numbers[4:8], numbers[8:]


def _with(made, name, value):
    fields = {field: getattr(made, field) for field in made.__slots__} | {name: value}
    return Message(**fields)


def _facts(record):
    return record.value, record.key, record.headers, record.timestamp_ms, record.partition, record.message_id


def _difference(found):
    return found.kind, found.source_offset, found.target_offset, found.message_id, found.fields
