# SPDX-License-Identifier: Apache-2.0
"""The status of a member, and its effect on probes."""

from types import SimpleNamespace
from unittest import mock

from oslotest import base

from monasca_common.kafka import Batch, MessagingError
from monasca_common.kafka.errors import RegistryUnavailable, RetriableError, TransportError
from monasca_common.kafka.message import TopicPartition
from monasca_common.kafka.transport.memory import VirtualClock
from monasca_common.runtime.member_health import MemberHealth, MemberState, MemberStatus, members_health

TP = TopicPartition("metrics", 0)
DATABASE, KAFKA = MemberState.WAITING_FOR_DATABASE, MemberState.WAITING_FOR_KAFKA
REGISTRY = MemberState.WAITING_FOR_REGISTRY


class MemberHealthCase(base.BaseTestCase):
    """A member whose attempt has begun, over a consumer that the test sets."""

    def setUp(self):
        super().setUp()
        self.clock = VirtualClock()
        self.health = MemberHealth(MemberStatus("metrics-0", pid=7), self.clock)
        self.health.begin()
        self.behind, self.position, self.turn_seconds = {TP: 0}, 40, 0.0
        self.consumer = mock.Mock(
            lag=lambda _: self.behind,
            position=lambda _: self.position,
            assignment=lambda: set(self.behind),
            health=lambda: SimpleNamespace(seconds_since_poll=self.turn_seconds),
        )

    def status(self):
        return self.health.report(self.consumer)

    def polled(self, start_offset):
        part = SimpleNamespace(topic_partition=TP, start_offset=start_offset)
        self.health.after_poll(Batch((part,)))

    def committed(self, offset, error=None):
        self.health.before_commit({TP: offset})
        self.health.after_commit({TP: error})


class StatusTest(MemberHealthCase):
    def reported(self, *names):
        status = self.status()
        return tuple(getattr(status, name) for name in names)

    def test_time_without_the_database_is_counted_while_it_passes(self):
        self.health.waits(DATABASE, "away")
        self.clock.advance(3)
        self.assertEqual(3, self.status().database_unavailable_seconds)
        self.clock.advance(4)
        self.health.waits(DATABASE, "away")
        self.health.waits(DATABASE, "")
        self.clock.advance(5)
        self.assertEqual(7, self.status().database_unavailable_seconds)

    def test_a_member_waits_until_the_database_is_available_and_reports_since_when(self):
        self.clock.advance(10)
        self.health.waits(DATABASE, "away")
        since = self.status().since_ms
        self.clock.advance(10)
        self.health.waits(DATABASE, "still away")
        self.assertEqual((DATABASE, "still away", since), self.reported("state", "reason", "since_ms"))
        self.health.waits(DATABASE, "")
        self.assertEqual((MemberState.RUNNING, ""), self.reported("state", "reason"))

    def test_a_member_waits_for_the_registry_until_no_partition_does(self):
        parts = [SimpleNamespace(topic_partition=TopicPartition("metrics", n), start_offset=0) for n in range(3)]
        self.health.after_poll(Batch(tuple(parts)))
        for part in parts[:2]:
            self.health.after_handle(part, 1, RegistryUnavailable("no registry", 1.0))
        self.health.after_handle(parts[2], 1, None)
        self.health.after_handle(parts[0], 2, None)
        self.assertEqual((REGISTRY, "no registry"), self.reported("state", "reason"))
        self.health.after_revoke([parts[1].topic_partition])
        self.assertEqual((MemberState.RUNNING, ""), self.reported("state", "reason"))
        self.health.after_handle(parts[1], 3, RegistryUnavailable("no registry", 1.0))
        self.assertEqual(MemberState.RUNNING, self.status().state)

    def test_the_database_is_reported_before_kafka(self):
        self.health.waits(KAFKA, "no broker")
        self.assertEqual((KAFKA, "no broker"), self.reported("state", "reason"))
        self.health.waits(DATABASE, "away")
        self.assertEqual((DATABASE, "away"), self.reported("state", "reason"))
        self.health.waits(DATABASE, "")
        self.assertEqual((KAFKA,), self.reported("state"))
        self.health.waits(KAFKA, "")
        self.assertEqual((MemberState.RUNNING,), self.reported("state"))

    def test_a_failed_member_stays_failed_until_its_next_attempt(self):
        self.health.enter(MemberState.FAILED, "because")
        self.health.waits(DATABASE, "away")
        self.assertEqual((MemberState.FAILED, "because"), self.reported("state", "reason"))
        self.health.begin()
        self.assertEqual((MemberState.RUNNING, ""), self.reported("state", "reason"))

    def test_a_new_attempt_does_not_wait_for_the_dependencies_of_the_previous_one(self):
        for state in (DATABASE, KAFKA):
            self.health.waits(state, "unavailable")
        self.health.begin()
        self.assertEqual((MemberState.RUNNING, ""), self.reported("state", "reason"))

    def test_time_without_the_database_is_counted_while_the_member_has_failed(self):
        self.health.waits(DATABASE, "away")
        self.clock.advance(3)
        self.health.enter(MemberState.FAILED, "because")
        self.clock.advance(4)
        self.assertEqual((7,), self.reported("database_unavailable_seconds"))
        self.health.begin()
        self.clock.advance(5)
        self.assertEqual((7,), self.reported("database_unavailable_seconds"))

    def test_a_member_without_partitions_does_not_wait_for_the_database(self):
        for goes in (self.health.after_revoke, self.health.after_lost):
            self.polled(30)
            self.health.waits(DATABASE, "away")
            self.health.after_revoke([TopicPartition("metrics", 1)])
            self.assertEqual((DATABASE,), self.reported("state"))
            goes([TP])
            self.assertEqual((MemberState.RUNNING,), self.reported("state"))

    def test_a_message_of_a_revoked_partition_does_not_wait_for_the_database(self):
        other = TopicPartition("metrics", 1)
        for revoked, state in (([], DATABASE), ([TP], MemberState.RUNNING)):
            with self.subTest(revoked=revoked):
                self.health.begin()
                self.polled(30)
                self.health.starts_at({other: 7})
                self.health.after_revoke(revoked)
                self.health.waits(DATABASE, "unavailable", TP)
                self.assertEqual((state,), self.reported("state"))

    def test_the_wait_for_the_database_ends_when_the_waiting_partitions_are_revoked(self):
        parts = [TopicPartition("metrics", number) for number in range(3)]
        self.health.starts_at(dict.fromkeys(parts, 0))
        for part in parts[:2]:
            self.health.waits(DATABASE, "unavailable", part)
        self.health.after_revoke(parts[:1])
        self.assertEqual((DATABASE,), self.reported("state"))
        self.health.after_lost(parts[1:2])
        self.assertEqual((MemberState.RUNNING,), self.reported("state"))

    def test_the_reason_is_the_latest_of_the_partitions_that_still_wait(self):
        parts = [TopicPartition("metrics", number) for number in range(3)]
        self.health.starts_at(dict.fromkeys(parts, 0))
        for part, reason in zip(parts, ("first", "second", "third"), strict=True):
            self.health.waits(DATABASE, reason, part)
        self.health.waits(DATABASE, "again", parts[0])
        for revoked, reason in (([], "again"), ([parts[0]], "third"), ([parts[2]], "second")):
            self.health.after_revoke(revoked)
            self.assertEqual((DATABASE, reason), self.reported("state", "reason"))

    def test_the_lag_includes_polled_messages_without_a_commit(self):
        self.behind = {TP: 60}
        self.assertEqual({"metrics/0": 60}, self.status().lag)
        self.polled(30)
        self.assertEqual({"metrics/0": 70}, self.status().lag)
        self.committed(35)
        self.assertEqual({"metrics/0": 65}, self.status().lag)
        self.committed(40, MessagingError("refused"))
        self.assertEqual({"metrics/0": 65}, self.status().lag)

    def test_the_lag_counts_from_a_start_offset_known_before_the_first_poll(self):
        self.health.starts_at({TP: 30})
        self.polled(35)
        self.assertEqual({"metrics/0": 10}, self.status().lag)

    def test_the_lag_of_slow_handlers_only_counts_unread_messages(self):
        self.health = MemberHealth(MemberStatus("changes"), self.clock, counts_unfinished=False)
        self.polled(30)
        self.assertEqual({"metrics/0": 0}, self.status().lag)
        self.behind = {TP: 2}
        self.committed(35)
        self.assertEqual({"metrics/0": 2}, self.status().lag)

    def test_after_a_failed_attempt_the_lag_counts_from_the_commits_of_other_members(self):
        self.polled(30)
        self.committed(40)
        self.health.begin()
        self.position = 100
        self.assertEqual({"metrics/0": 0}, self.status().lag)
        self.polled(95)
        self.assertEqual({"metrics/0": 5}, self.status().lag)

    def test_a_reassigned_partition_continues_at_the_commits_of_other_members(self):
        self.polled(30)
        self.health.after_revoke([TP])
        self.polled(38)
        self.assertEqual({"metrics/0": 2}, self.status().lag)

    def test_a_member_without_a_consumer_has_neither_partitions_nor_a_loop(self):
        self.assertEqual(
            (0, {}, 0), (lambda found: (found.partitions, found.lag, found.turned_ms))(self.health.report(None))
        )

    def test_a_returned_status_does_not_change(self):
        before = self.status()
        self.health.after_dead_letter(None, MessagingError("refused"))
        self.assertEqual((0, 1), (before.dead_letters, self.status().dead_letters))


class ProbesTest(MemberHealthCase):
    def setUp(self):
        super().setUp()
        self.probes = members_health("persister", lambda: [self.status()], clock=self.clock)

    def reasons(self):
        is_ready, body = self.probes.ready()
        self.assertEqual(is_ready, not body["reasons"])
        is_healthy, body_of_health = self.probes.health()
        self.assertEqual((is_ready, body["reasons"]), (is_healthy, body_of_health["reasons"]))
        return body["reasons"]

    def test_health_has_the_state_of_each_member_and_the_reason_of_one_that_waits(self):
        self.behind = {TP: 5}
        self.clock.advance(4)
        expected = {
            "state": "running",
            "reason": "",
            "seconds_in_state": 4.0,
            "lag": 5,
            "partitions": 1,
            "pid": 7,
            "restarts": 0,
        }
        self.assertEqual(
            (True, {"healthy": True, "reasons": [], "members": {"metrics-0": expected}}), self.probes.health()
        )
        self.health.waits(DATABASE, "away")
        healthy, body = self.probes.health()
        self.assertEqual((False, "away"), (healthy, body["members"]["metrics-0"]["reason"]))

    def test_waiting_messages_without_progress_are_a_stall(self):
        self.behind = {TP: 5}
        self.assertEqual([], self.reasons())
        self.clock.advance(59.0)
        self.assertEqual([], self.reasons())
        self.clock.advance(2.0)
        stall = ["metrics-0: STALL: 5 messages wait, and none was processed for 61 s"]
        self.assertEqual(stall, self.reasons())
        self.committed(41, MessagingError("refused"))
        self.assertEqual(stall, self.reasons())
        self.committed(41)
        self.assertEqual([], self.reasons())

    def test_a_stall_does_not_depend_on_the_time_of_day(self):
        self.behind = {TP: 5}
        for hours, seconds, stalls in ((1, 0.0, 0), (-2, 61.0, 1)):
            self.assertEqual([], self.reasons())
            self.clock._start_ms += hours * 3_600_000
            self.clock.advance(seconds)
            self.assertEqual(stalls, len(self.reasons()))

    def test_a_member_without_waiting_messages_does_not_stall(self):
        self.clock.advance(1000.0)
        self.assertEqual([], self.reasons())
        self.behind = {TP: 1}  # the message has just arrived
        self.assertEqual([], self.reasons())

    def test_a_member_without_partitions_is_not_ready_for_a_minute(self):
        self.behind = {}
        self.assertEqual(["metrics-0: no partitions are assigned yet"], self.reasons())
        self.clock.advance(61.0)
        self.assertEqual([], self.reasons())
        self.clock._start_ms -= 3_600_000  # the clock is set back
        self.assertEqual([], self.reasons())

    def test_a_member_that_cannot_join_its_group_is_not_ready(self):
        self.behind = {}
        for error, reasons in (
            (TransportError("the session time-out is refused"), ["metrics-0: no partitions are assigned yet"]),
            (RetriableError("the coordinator moves"), []),
        ):
            self.clock.advance(61.0)
            self.status()
            self.health.after_poll(Batch(errors=(error,)))
            self.assertEqual(reasons, self.reasons())

    def test_a_member_that_waits_is_not_ready(self):
        self.health.waits(DATABASE, "refused")
        self.assertEqual(["metrics-0: waiting for the database: refused"], self.reasons())

    def test_a_member_with_a_hanging_batch_is_not_live(self):
        for self.turn_seconds, live in ((600.0, True), (601.0, False)):
            self.assertEqual(live, self.probes.live()[0])

    def test_a_service_is_live_while_members_wait_for_a_restart_or_a_process_is_replaced(self):
        cases = {
            "the status is reported, and the loop hangs": ({"reported_ms": 700_000, "turned_ms": 1000}, False),
            "the member waits for its next start": ({"reported_ms": 700_000, "turned_ms": 0}, True),
            "nothing is reported any more": ({"reported_ms": 1000, "turned_ms": 0}, False),
            "the process has ended": ({"reported_ms": 1000, "pid": 0}, True),
        }
        clock = mock.Mock(time_ms=lambda: 700_000)
        for name, (facts, live) in cases.items():
            with self.subTest(name):
                status = MemberStatus("metrics-0", **{"pid": 7, **facts})
                self.assertEqual(live, members_health("p", lambda found=status: [found], clock=clock).live()[0])
