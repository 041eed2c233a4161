# SPDX-License-Identifier: Apache-2.0
"""Missing information leads to an error, and never to a good verdict."""

import contextlib
import io
import json
import struct
from types import SimpleNamespace
from unittest import mock

import fixtures
from oslotest import base

from monasca_common.cli import main
from monasca_common.kafka.errors import AuthorizationError, RetriableError
from monasca_common.kafka.message import Message, OffsetAndEpoch, TopicPartition
from monasca_common.kafka.settings import ConnectionSettings
from monasca_common.kafka.testing import MemoryKafka
from monasca_common.kafka.transport.admin import GroupAssignment, TopicDescription
from monasca_common.operations import log_reading
from monasca_common.operations.durability import durability_findings, topic_durability
from monasca_common.operations.lag.commit_records import OFFSETS_TOPIC, CommitRecord
from monasca_common.operations.lag.history import LagHistory, PartitionHistory, following, to_keep
from monasca_common.operations.lag.survey import LagSurvey, spaced_commits
from monasca_common.operations.lag.verdict import (
    Commit,
    LagStatus,
    LagVerdict,
    LagWindow,
    LogScan,
    PartitionState,
    partition_lag,
)

NOW = 1_000_000_000_000
TP = TopicPartition("metrics", 0)
WELL = LagVerdict(LagStatus.OK, 0, 0.0, 0, None, 1.0)
_NO_HISTORY = LagHistory()
CONFIG = {
    "retention.ms": "604800000",
    "retention.bytes": "-1",
    "cleanup.policy": "delete",
    "min.insync.replicas": "2",
    "unclean.leader.election.enable": "false",
}


class FakeLog:
    """Messages with timestamps. `at` returns the first offset whose timestamp is not older, like Kafka's
    ListOffsets."""

    def __init__(self, times):
        self.times = times

    def at(self, time_ms):
        return next((offset for offset, each in enumerate(self.times) if each >= time_ms), None)


class SurveyedAdmin:
    def __init__(self, log, group_offsets, commits, first=0):
        self.log, self.offsets, self.commits, self.first = log, group_offsets, commits, first
        self.assigned, self.subscribes, self.is_settled, self.written = (), False, True, None

    def groups(self):
        return {"g", "monasca-dlq-replay"}

    def offsets_of(self, groups):
        return {group: dict(self.offsets) for group in groups}

    def assignments(self, groups):
        assignment = GroupAssignment(frozenset(self.assigned), subscribes=self.subscribes, is_settled=self.is_settled)
        return dict.fromkeys(groups, assignment)

    def leaders(self):
        return {topic: dict.fromkeys(range(count), 1) for topic, count in self.partition_counts().items()}

    def partition_counts(self):
        return {OFFSETS_TOPIC: 1, "metrics": 1}

    def offsets_for_times(self, times):
        found = {}
        for partition, time_ms in times.items():
            log = FakeLog([each[0] for each in self.commits]) if partition.topic == OFFSETS_TOPIC else self.log
            found[partition] = log.at(time_ms)
        return found

    def first_offsets(self, partitions):
        return dict.fromkeys(partitions, self.first)

    def end_offsets(self, partitions, *, open_transactions=False):
        if open_transactions and self.written:
            return dict.fromkeys(partitions, self.written)
        ends = {OFFSETS_TOPIC: len(self.commits)}
        return {partition: ends.get(partition.topic, len(self.log.times)) for partition in partitions}

    def topic_configs(self, topics):
        return dict.fromkeys(topics, CONFIG)

    def describe_topics(self, names):
        return {name: TopicDescription(name, "id", 1, (1,), ((1, 2, 3),), ((1, 2, 3),)) for name in names}

    def messages(self, partition):
        if partition.topic == OFFSETS_TOPIC:
            return [
                Message(OFFSETS_TOPIC, 0, n, t, _key("g", TP), _value(o, t), ())
                for n, (t, o) in enumerate(self.commits)
            ]
        return [Message(*partition, n, t, None, b"", ()) for n, t in enumerate(self.log.times)]


def _key(group, tp):
    def text(x):
        return struct.pack(">h", len(x)) + x.encode()

    return struct.pack(">h", 1) + text(group) + text(tp.topic) + struct.pack(">i", tp.partition)


def _value(offset, time_ms):
    return struct.pack(">hqih", 3, offset, -1, 0) + struct.pack(">q", time_ms)


class SurveyConsumer:
    """``gives``: the number of messages per poll; 0: the broker does not respond in time."""

    def __init__(self, admin, starts, silent, per_poll):
        self.waiting = {tp: admin.messages(tp)[start:] for tp, start in starts.items() if tp.topic not in silent}
        self.admin, self.silent, self.per_poll = admin, silent, per_poll

    def poll(self, _most, timeout):
        parts = []
        for tp, waiting in self.waiting.items():
            some, self.waiting[tp] = waiting[: self.per_poll], waiting[self.per_poll :]
            if some:
                parts.append(FakePart(tp, some))
        return SimpleNamespace(partitions=parts, errors=())

    def take_ends(self):
        ended = [tp for tp, waiting in self.waiting.items() if not waiting]
        return {tp: OffsetAndEpoch(0, self.position(tp)) for tp in ended}

    def position(self, tp):
        return len(self.admin.messages(tp)) - len(self.waiting[tp])

    def seek(self, tp, offset):
        self.waiting[tp] = self.admin.messages(tp)[offset:]

    def pause(self, partitions):
        for tp in partitions:
            self.waiting.pop(tp, None)


class FakePart(list[Message]):
    def __init__(self, tp, messages):
        super().__init__(messages)
        self.topic_partition = tp
        self.next_offset = messages[-1].offset + 1


def survey(admin, *, silent=(), per_poll=5000, timeout_seconds=0.3, ticks=None, history=_NO_HISTORY):
    @contextlib.contextmanager
    def opened(_settings, *, partitions, listener):
        yield SurveyConsumer(admin, listener.assigned(list(partitions)), silent, per_poll)

    window = LagWindow()
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(log_reading, "open_consumer", opened))
        if ticks is not None:
            stack.enter_context(mock.patch.object(log_reading.time, "monotonic", mock.Mock(side_effect=ticks)))
        states = LagSurvey(admin, ConnectionSettings("nowhere:1"), window, timeout_seconds=timeout_seconds).scan(
            ["g"], NOW, None, history
        )["g"]
    return {tp: (state, partition_lag(state, NOW, window)) for tp, state in states.items()}


class TestTimeOut(base.BaseTestCase):
    def test_a_read_time_out_does_not_mean_that_nothing_is_unread(self):
        """A consumer has been dead for an hour with 1000 unread messages, and its partition cannot be read in time."""
        log = FakeLog([NOW - 3_600_000 + n for n in range(1000)])
        admin = SurveyedAdmin(log, {TP: 0}, [(NOW - 3_600_000, 0)])
        _, good = survey(admin)[TP]
        self.assertEqual((LagStatus.STOP, 1000), (good.status, good.messages))
        self.assertRaises(RetriableError, survey, admin, silent=("metrics",))

    def test_commits_that_were_not_read_in_time_are_not_a_stop(self):
        """A group commits every second and stays 90 s behind. Only half of its commits are read in time."""
        log = FakeLog([NOW - 600_000 + 1000 * n for n in range(600)])
        commits = [(NOW - 600_000 + 1000 * n, max(0, n - 90)) for n in range(600)]
        admin = SurveyedAdmin(log, {TP: 509}, commits)
        _, good = survey(admin)[TP]
        self.assertEqual((LagStatus.WARNING, 91), (good.status, good.messages))
        # one poll returns 300 records, then the time is over; later reads work
        ticks = iter([0.0, 99.0])
        self.assertRaises(RetriableError, survey, admin, per_poll=300, ticks=lambda: next(ticks))


class TestFutureTimestamp(base.BaseTestCase):
    def test_one_message_of_a_fast_clock_hides_no_stall(self):
        def status(times):
            log = FakeLog(times)
            commits = [(NOW - 300_000 + 10_000 * n, 100) for n in range(31)]
            return survey(SurveyedAdmin(log, {TP: 100}, commits))[TP][1].status

        times = [NOW - 900_000 + 1000 * n for n in range(900)]
        self.assertEqual(LagStatus.STALL, status(times))
        times[50] = NOW + 86_400_000
        self.assertEqual(LagStatus.STALL, status(times))

    def test_a_scan_before_the_clock_was_set_back_hides_no_stop(self):
        log = FakeLog([NOW - 290_000 + 1000 * n for n in range(200)])
        admin = SurveyedAdmin(log, {TP: 100}, [(NOW - 300_000, 100)])
        for scanned_ms in (NOW - 305_000, NOW + 3_600_000):
            scan = LogScan(scanned_ms, 0, 100, 100, is_unread=False, read_to=100)
            known = PartitionHistory(scanned_ms, WELL, (Commit(NOW - 300_000, 100, 100),), (scan,))
            _, found = survey(admin, history=LagHistory(scanned_ms, {"g": {TP: known}}))[TP]
            self.assertEqual(LagStatus.STOP, found.status)


class TestFrequentSurveys(base.BaseTestCase):
    def test_a_stall_is_detected_at_any_survey_interval(self):
        window = LagWindow()
        for interval in (1, 2, 5, 6, 10, 30):
            known: list[CommitRecord] = []
            for now in range(interval, 601, interval):
                new = [CommitRecord("g", TopicPartition("t", 0), 7, at * 1000) for at in range(now - interval, now)]
                known = spaced_commits((*known, *new), window)
            commits = tuple(Commit(each.time_ms, 7, each.time_ms) for each in known)
            found = partition_lag(PartitionState(0, 700_000, commits, unread_since_ms=0), 600_000, window)
            self.assertEqual((interval, LagStatus.STALL), (interval, found.status))


class TestRewinds(base.BaseTestCase):
    def test_a_small_rewind_between_two_stored_commits_is_detected(self):
        """The group was at 6000 and is reset to 5600, an hour later or immediately after its last commit."""
        for later_ms in (100, 3_600_000):
            commits = [CommitRecord("g", TP, 100 * n, NOW + 1000 * n) for n in range(61)]
            commits.append(CommitRecord("g", TP, 5600, commits[-1].time_ms + later_ms))
            kept = spaced_commits(commits, LagWindow())
            self.assertEqual([6000, 5600], [record.offset for record in kept[-2:]])
            now_ms = commits[-1].time_ms + 1000
            state = PartitionState(0, 9000, tuple(Commit(each.time_ms, each.offset, 9000) for each in kept), now_ms)
            self.assertEqual(LagStatus.REWIND, partition_lag(state, now_ms, LagWindow()).status)


class TestHiddenCommits(base.BaseTestCase):
    """An open transaction of another group hides later commits in the partition of ``__consumer_offsets``."""

    def setUp(self):
        super().setUp()
        self.log = FakeLog([NOW - 600_000 + 1000 * n for n in range(600)])
        self.commits = [(NOW - 600_000 + 1000 * n, n) for n in range(400)]

    def test_a_group_whose_later_commits_are_hidden_has_not_stopped(self):
        state, lag = survey(SurveyedAdmin(self.log, {TP: 590}, self.commits))[TP]
        self.assertEqual((590, NOW), (state.commits[-1].offset, state.commits[-1].time_ms))
        self.assertEqual((LagStatus.OK, 10), (lag.status, lag.messages))

    def test_a_group_without_commits_is_stopped_even_if_the_transaction_is_still_open(self):
        known = PartitionHistory(NOW - 300_000, WELL, (Commit(NOW - 300_000, 590, 599),), ())
        history = LagHistory(NOW - 10_000, {"g": {TP: known}})
        state, lag = survey(SurveyedAdmin(self.log, {TP: 590}, self.commits), history=history)[TP]
        self.assertEqual(known.commits, state.commits)
        self.assertEqual(LagStatus.STOP, partition_lag(state, NOW + 60_000, LagWindow()).status)
        self.assertEqual(10, lag.messages)

    def test_a_commit_during_a_gap_of_surveys_does_not_count_as_new(self):
        """The last scan is older than the commits that are read, and there are no commits since."""
        commits = tuple(Commit(NOW - 7_200_000 + 10_000 * n, 398 + n, 400) for n in range(3))
        for offset in (420, 380):
            known = PartitionHistory(NOW - 7_200_000, WELL, commits, ())
            history = LagHistory(NOW - 7_180_000, {"g": {TP: known}})
            state, lag = survey(SurveyedAdmin(self.log, {TP: offset}, []), history=history)[TP]
            self.assertEqual((offset, NOW - 600_000), (state.commits[-1].offset, state.commits[-1].time_ms))
            self.assertEqual(LagStatus.STOP, lag.status)

    def test_an_offset_older_than_the_last_commit_record_is_ignored(self):
        state, _ = survey(SurveyedAdmin(self.log, {TP: 390}, self.commits))[TP]
        self.assertEqual(399, state.commits[-1].offset)


class TestDurabilityOffline(base.BaseTestCase):
    def test_an_offline_partition_is_named_although_a_group_reads_it(self):
        admin = SurveyedAdmin(FakeLog([]), {TP: 0}, [])
        admin.describe_topics = lambda names: {
            name: TopicDescription(name, "id", 1, (None,), ((1, 2, 3),), ((),)) for name in names
        }

        def no_leader(partitions, **__):
            if not partitions:
                return {}
            raise RetriableError("leader not available", name="LEADER_NOT_AVAILABLE")

        admin.end_offsets = admin.first_offsets = no_leader
        admin.offsets_for_times = lambda times: dict.fromkeys(times)
        out, err = io.StringIO(), io.StringIO()
        (topic,) = topic_durability(admin, ["metrics"])
        self.assertEqual(["offline"], [each.rule for each in durability_findings(topic)])
        cluster = mock.patch("monasca_common.cli.command.ClusterCommand.cluster", lambda *_: (admin, None))
        with cluster, mock.patch("sys.stdout", out), mock.patch("sys.stderr", err):
            status = main.main(["durability", "check", "--topic", "metrics", "-f", "json"])
        self.assertEqual(1, status)
        self.assertEqual(["offline"], [row["rule"] for row in json.loads(out.getvalue())])

    def test_a_requested_topic_has_a_verdict_although_another_topic_is_offline(self):
        admin = SurveyedAdmin(FakeLog([]), {TopicPartition("other", 0): 0}, [])
        admin.partition_counts = lambda: {OFFSETS_TOPIC: 1, "metrics": 1, "other": 1}
        admin.describe_topics = lambda names: {
            name: TopicDescription(name, "id", 1, (1,), ((1, 2, 3),), ((1, 2, 3),)) for name in names
        }

        def offsets(partitions, **_):
            if any(each.topic == "other" for each in partitions):
                raise RetriableError("leader not available", name="LEADER_NOT_AVAILABLE")
            return dict.fromkeys(partitions, 0)

        admin.end_offsets = admin.first_offsets = offsets
        admin.offsets_for_times = lambda times: dict.fromkeys(times)
        cluster = mock.patch("monasca_common.cli.command.ClusterCommand.cluster", lambda *_: (admin, None))
        with cluster, mock.patch("sys.stdout", io.StringIO()), mock.patch("sys.stderr", io.StringIO()):
            status = main.main(["durability", "check", "--topic", "metrics", "-f", "json"])
        self.assertEqual(0, status)


class TestThreshold(base.BaseTestCase):
    """Messages are kept for 7 days, and the oldest unread one is 5 days old."""

    def setUp(self):
        super().setUp()
        self.admin = SurveyedAdmin(FakeLog([NOW - 5 * 86_400_000 + n for n in range(9)]), {TP: 0}, [(NOW - 1000, 0)])
        self.useFixture(
            fixtures.MonkeyPatch("monasca_common.cli.command.ClusterCommand.cluster", lambda *_: (self.admin, None))
        )
        for module in ("lag", "durability"):
            clock = SimpleNamespace(time_ms=lambda: NOW)
            self.useFixture(fixtures.MonkeyPatch(f"monasca_common.cli.{module}.SystemClock", lambda clock=clock: clock))

        @contextlib.contextmanager
        def opened(_settings, *, partitions, listener):
            yield SurveyConsumer(self.admin, listener.assigned(list(partitions)), (), 5000)

        self.useFixture(fixtures.MonkeyPatch("monasca_common.operations.log_reading.open_consumer", opened))
        self.useFixture(fixtures.MonkeyPatch("monasca_common.operations.log_reading.ConsumerSettings", mock.Mock()))

    def run_command(self, *command, least_headroom, more=""):
        """Return the exit status and the rows."""
        text = f"[kafka]\nbootstrap_servers = nowhere:1\n[lag]\nleast_headroom = {least_headroom}\n{more}"
        (config,) = self.create_tempfiles([("lag", text)], ".conf")
        out, errors = io.StringIO(), io.StringIO()
        shape = () if "-f" in command else ("-f", "json")
        with mock.patch("sys.stdout", out), mock.patch("sys.stderr", errors):
            status = main.main([*command, "--config-file", config, *shape])
        self.errors = errors.getvalue()
        return status, json.loads(out.getvalue()) if shape else [json.loads(out.getvalue())]

    def test_one_option_defines_the_messages_that_expire_soon(self):
        for least_headroom, expected in ((0.28, False), (0.29, True)):
            for command in (("list",), ("show", "--group", "g")):
                status, (row,) = self.run_command("lag", *command, least_headroom=least_headroom)
                self.assertEqual((int(expected), "OK", expected), (status, row["status"], row["expires_soon"]))
                self.assertEqual((172_800, 172_800), (row["deleted_in_seconds"], row["lost_in_seconds"]))
            status, found = self.run_command("durability", "check", "--topic", "metrics", least_headroom=least_headroom)
            near = [row["topic"] for row in found if row["rule"] == "retention_near"]
            self.assertEqual((int(expected), ["metrics"] if expected else []), (status, near))

    def test_the_dashboard_uses_the_same_options(self):
        text = "[kafka]\nbootstrap_servers = nowhere:1\n[lag]\nleast_headroom = 0.4\nwindow_seconds = 7\ntopic = kept\n"
        text += "[dashboard]\nlogin = none\n[monitoring]\ndurability_check = off\n"
        (config,) = self.create_tempfiles([("dashboard", text)], ".conf")
        dashboard = "monasca_common.operations.dashboard"
        with (
            mock.patch(f"{dashboard}.server.kafka_panels") as made,
            mock.patch(f"{dashboard}.server.DashboardServer") as server,
        ):
            main.main(["dashboard", "--config-file", config])
            server.call_args.args[1](None)
        self.assertIn(LagWindow(seconds=7.0, least_headroom=0.4), made.call_args.args)
        self.assertEqual("kept", made.call_args.kwargs["history_topic"])


class TestDeadLetterGroup(base.BaseTestCase):
    """One dead letter was replayed an hour ago, and another was written ten minutes ago. For a service, this would be a
    stop."""

    def setUp(self):
        super().setUp()
        self.admin = SurveyedAdmin(FakeLog([NOW - 3_600_000, NOW - 600_000]), {TP: 1}, [(NOW - 3_600_000, 1)])

    def test_the_replay_group_waits_for_an_operator_and_has_no_verdict(self):
        made = LagSurvey(self.admin, ConnectionSettings("nowhere:1"), LagWindow(), timeout_seconds=0.3)
        self.assertEqual(["g"], made.groups())
        self.assertEqual(LagStatus.STOP, survey(self.admin)[TP][1].status)

    def test_the_replay_group_is_refused_with_the_command_for_dead_letters(self):
        cluster = mock.patch("monasca_common.cli.command.ClusterCommand.cluster", lambda *_: (self.admin, None))
        errors = io.StringIO()
        with cluster, mock.patch("sys.stdout", io.StringIO()), mock.patch("sys.stderr", errors):
            self.assertEqual(2, main.main(["lag", "list", "--group", "monasca-dlq-replay"]))
        self.assertIn("dlq list", errors.getvalue())


class TestUnknownGroup(base.BaseTestCase):
    def test_a_missing_group_is_an_error(self):
        admin = SurveyedAdmin(FakeLog([]), {}, [])
        cluster = mock.patch("monasca_common.cli.command.ClusterCommand.cluster", lambda *_: (admin, None))
        with cluster, mock.patch("sys.stdout", io.StringIO()), mock.patch("sys.stderr", io.StringIO()):
            self.assertNotEqual(0, main.main(["lag", "list", "--group", "monasca-persiter"]))


class TestOutage(base.BaseTestCase):
    def test_brokers_that_do_not_respond_or_refuse_end_with_status_2(self):
        admin = SurveyedAdmin(FakeLog([]), {}, [])
        for error in (RetriableError("no response from kafka1:9092"), AuthorizationError("not allowed")):
            admin.groups = mock.Mock(side_effect=error)
            with (
                mock.patch("monasca_common.cli.command.ClusterCommand.cluster", lambda *_: (admin, None)),
                mock.patch("sys.stdout", io.StringIO()),
                mock.patch("sys.stderr", io.StringIO()) as errors,
            ):
                self.assertEqual(2, main.main(["lag", "list"]))
            self.assertIn(str(error), errors.getvalue())


class TestOffsetsTopicHidden(base.BaseTestCase):
    def test_without_access_to_the_topic_of_commits_there_is_an_error_and_no_verdict(self):
        """Metadata omit topics that the user cannot describe. The group stays 90 s behind and never stopped."""
        log = FakeLog([NOW - 600_000 + 1000 * n for n in range(600)])
        admin = SurveyedAdmin(log, {TP: 509}, [(NOW - 600_000 + 1000 * n, max(0, n - 90)) for n in range(600)])
        admin.partition_counts = lambda: {"metrics": 1}
        self.assertRaises(AuthorizationError, survey, admin)


class TestGroupsOfAnyClient(base.BaseTestCase):
    def test_partitions_of_members_that_never_commit_have_verdicts(self):
        admin = SurveyedAdmin(FakeLog([NOW - 900_000] * 10), {}, [])
        admin.assigned = [TP]
        state, lag = survey(admin)[TP]
        self.assertEqual(((), LagStatus.STOP, 10), (state.commits, lag.status, lag.messages))

    def test_messages_before_the_first_scan_of_a_group_without_commits_do_not_count(self):
        admin = SurveyedAdmin(FakeLog([NOW - 900_000] * 10), {}, [])
        admin.assigned = [TP]
        scan = LogScan(NOW - 600_000, 0, 10, None, is_unread=False, read_to=10)
        history = LagHistory(NOW - 10_000, {"g": {TP: PartitionHistory(NOW - 10_000, WELL, (), (scan,))}})
        _, lag = survey(admin, history=history)[TP]
        self.assertEqual((LagStatus.OK, 0), (lag.status, lag.messages))

    def test_a_group_without_offsets_and_members_that_read_has_no_partitions(self):
        self.assertEqual({}, survey(SurveyedAdmin(FakeLog([NOW]), {}, [])))


class TestUnassignedPartitions(base.BaseTestCase):
    """The group has committed only in partition 0, of which it has read all messages. Partition 1 has old messages."""

    def setUp(self):
        super().setUp()
        self.other = TopicPartition("metrics", 1)
        self.admin = SurveyedAdmin(FakeLog([NOW - 900_000] * 10), {TP: 10}, [(NOW - 900_000, 10)])
        self.admin.partition_counts = lambda: {OFFSETS_TOPIC: 1, "metrics": 2}

    def lag(self, **options):
        """Return the verdict of `following` on partition 1."""
        states = {"g": {tp: state for tp, (state, _) in survey(self.admin, **options).items()}}
        self.history = following(states, NOW, LagWindow())
        known = self.history.of("g", self.other)
        return None if known is None else known.lag

    def test_a_partition_that_no_member_reads_is_a_stop_also_at_the_second_scan(self):
        self.admin.subscribes = True
        lag = self.lag()
        self.assertEqual((LagStatus.STOP, 10), (lag.status, lag.messages))
        lag = self.lag(history=self.history)
        self.assertEqual((LagStatus.STOP, 10), (lag.status, lag.messages))

    def test_a_partition_that_a_member_reads_may_begin_at_its_end(self):
        self.admin.subscribes, self.admin.assigned = True, (TP, self.other)
        self.assertEqual((LagStatus.OK, 0), (self.lag().status, self.lag().messages))

    def test_a_first_scan_during_a_rebalance_is_not_a_stop(self):
        self.admin.subscribes, self.admin.is_settled = True, False
        self.assertEqual((LagStatus.OK, 0), (self.lag().status, self.lag().messages))
        self.admin.assigned, self.admin.is_settled = (TP, self.other), True
        lag = self.lag(history=self.history)
        self.assertEqual((LagStatus.OK, 0), (lag.status, lag.messages))

    def test_a_stop_ends_when_a_member_reads_the_partition_and_not_with_a_rebalance(self):
        self.admin.subscribes = True
        self.assertEqual(LagStatus.STOP, self.lag().status)
        self.admin.is_settled = False
        self.assertEqual(LagStatus.STOP, self.lag(history=self.history).status)
        self.admin.assigned, self.admin.is_settled = (TP, self.other), True
        for _ in range(2):
            lag = self.lag(history=self.history)
            self.assertEqual((LagStatus.OK, 0), (lag.status, lag.messages))

    def test_the_verdict_of_a_group_covers_only_its_chosen_partitions(self):
        self.assertIsNone(self.lag())


class TestOfflinePartitions(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.offline = TopicPartition("metrics", 1)
        self.admin = SurveyedAdmin(FakeLog([NOW - 900_000] * 10), {TP: 0, self.offline: 3}, [(NOW - 900_000, 0)])
        self.admin.leaders = lambda: {OFFSETS_TOPIC: {0: 1}, "metrics": {0: 1, 1: None}}

    def test_the_other_partitions_have_verdicts(self):
        found = survey(self.admin)
        self.assertEqual(LagStatus.STOP, found[TP][1].status)
        self.assertEqual(LagStatus.OFFLINE, found[self.offline][1].status)

    def test_the_history_of_an_offline_partition_is_kept(self):
        commits = (Commit(NOW - 300_000, 3, 9),)
        scans = (LogScan(NOW - 300_000, 0, 9, 3, is_unread=True, read_to=3),)
        history = LagHistory(NOW - 10_000, {"g": {self.offline: PartitionHistory(NOW - 10_000, WELL, commits, scans)}})
        states = {"g": {tp: state for tp, (state, _) in survey(self.admin, history=history).items()}}
        after = following(states, NOW, LagWindow())
        known = after.of("g", self.offline)
        self.assertEqual((commits, scans, LagStatus.OFFLINE), (known.commits, known.scans, known.lag.status))
        self.assertEqual(known, to_keep(history, after).of("g", self.offline))

    def test_a_list_names_the_partition_and_has_status_1(self):
        admin = self.admin
        admin.offsets_of = lambda groups: {group: {self.offline: 3} for group in groups}
        admin.offsets_for_times = lambda times: dict.fromkeys(times)
        out, errors = io.StringIO(), io.StringIO()
        cluster = mock.patch("monasca_common.cli.command.ClusterCommand.cluster", lambda *_: (admin, None))
        reader = mock.patch("monasca_common.operations.lag.survey.LogReader")
        with cluster, reader, mock.patch("sys.stdout", out), mock.patch("sys.stderr", errors):
            status = main.main(["lag", "list", "-f", "json"])
        self.assertEqual((1, "OFFLINE"), (status, json.loads(out.getvalue())[0]["status"]))
        self.assertIn("because they have no leader: metrics/1", errors.getvalue())


class TestOpenTransactions(base.BaseTestCase):
    """The group has read all committed messages; a transaction hides 5 offsets."""

    def states(self, history=_NO_HISTORY):
        admin = SurveyedAdmin(FakeLog([NOW - 900_000] * 10), {TP: 10}, [(NOW - 900_000, 10)])
        admin.written = 15
        return {"g": {tp: state for tp, (state, _) in survey(admin, history=history).items()}}

    def lag(self, *scans):
        """Return the verdict. ``scans``: the age, the end of the log, and whether a transaction was open."""
        made = tuple(
            LogScan(NOW - ago_ms, 0, end, 10, is_unread=False, read_to=10, is_open=is_open)
            for ago_ms, end, is_open in scans
        )
        history = LagHistory(None, {"g": {TP: PartitionHistory(NOW - 10_000, WELL, (), made)}})
        lag = partition_lag(self.states(history)["g"][TP], NOW, LagWindow())
        return lag.status, lag.hidden

    def test_a_transaction_open_for_longer_than_the_window_is_a_warning(self):
        self.assertEqual((LagStatus.OK, 0), self.lag((60_000, 10, True), (10_000, 10, True)))
        self.assertEqual((LagStatus.WARNING, 5), self.lag((60_001, 10, True), (10_000, 10, True)))

    def test_without_an_earlier_scan_no_transaction_is_reported(self):
        self.assertEqual((LagStatus.OK, 0), self.lag())

    def test_the_idle_time_before_a_transaction_does_not_count(self):
        self.assertEqual((LagStatus.OK, 0), self.lag((600_000, 10, False), (10_000, 10, True)))

    def test_successive_transactions_do_not_count_as_one(self):
        self.assertEqual((LagStatus.OK, 0), self.lag((600_000, 8, True), (10_000, 10, True)))

    def test_a_scan_stores_whether_a_transaction_is_open(self):
        after = following(self.states(), NOW, LagWindow())
        self.assertEqual([True], [scan.is_open for scan in after.of("g", TP).scans])


class TestTruncation(base.BaseTestCase):
    def test_a_log_that_ends_before_the_committed_offset_is_reported(self):
        admin = SurveyedAdmin(FakeLog([NOW - 900_000] * 10), {TP: 14}, [(NOW - 900_000, 14)])
        _, lag = survey(admin)[TP]
        self.assertEqual((LagStatus.WARNING, 4, 0), (lag.status, lag.truncated, lag.messages))

    def test_an_offset_within_an_open_transaction_is_not_truncated(self):
        admin = SurveyedAdmin(FakeLog([NOW - 900_000] * 10), {TP: 14}, [(NOW - 900_000, 14)])
        admin.written = 15
        _, lag = survey(admin)[TP]
        self.assertEqual((LagStatus.OK, 0), (lag.status, lag.truncated))


class TestWithHistory(base.BaseTestCase):
    def test_old_timestamps_do_not_change_ends_of_scans(self):
        """A group is stalled in a log whose messages have timestamps of a year ago. By these timestamps, it was never
        late."""
        year_ms = 365 * 86_400_000
        log = FakeLog([NOW - year_ms] * 500)
        commits = [(NOW - 90_000 + 10_000 * n, 100) for n in range(10)]
        scans = tuple(
            LogScan(NOW - 95_000 + 10_000 * n, 0, 400 + 10 * n, 100, is_unread=True, read_to=100) for n in range(9)
        )
        history = LagHistory(None, {"g": {TP: PartitionHistory(NOW - 15_000, WELL, (), scans)}})
        state, lag = survey(SurveyedAdmin(log, {TP: 100}, commits), history=history)[TP]
        self.assertEqual(LagStatus.STALL, lag.status)
        self.assertEqual([405, 415], [commit.end for commit in state.commits[:2]])

    def test_commits_of_the_history_are_not_read_again(self):
        log = FakeLog([NOW - 900_000 + 1000 * n for n in range(900)])
        commits = [(NOW - 300_000 + 10_000 * n, 100 + n) for n in range(30)]
        admin = SurveyedAdmin(log, {TP: 129}, commits)
        state, _ = survey(admin)[TP]
        known = PartitionHistory(NOW - 40_000, WELL, state.commits[:-3], ())
        asked = mock.Mock(side_effect=admin.offsets_for_times)
        admin.offsets_for_times = asked
        again, _ = survey(admin, history=LagHistory(NOW - 40_000, {"g": {TP: known}}))[TP]
        self.assertEqual(state.commits, again.commits)
        self.assertEqual(NOW - 70_000, asked.call_args_list[0].args[0][TopicPartition(OFFSETS_TOPIC, 0)])


class TestReading(base.BaseTestCase):
    """Opening a consumer takes a second on a busy cluster."""

    def setUp(self):
        super().setUp()
        self.reads = []

        def read(_reader, offsets, _ends):
            if offsets:
                self.reads.append(offsets)
            for partition, wanted in offsets.items():
                for start in sorted(set(wanted)):
                    yield Message(partition.topic, partition.partition, start, NOW - 1000 + start, None, b"", ())

        self.useFixture(fixtures.MonkeyPatch("monasca_common.operations.lag.survey.LogReader.at", read))
        self.admin = SurveyedAdmin(FakeLog([NOW - 1000 + n for n in range(100)]), {}, [])
        self.admin.offsets_for_times = lambda times: dict.fromkeys(times)
        self.at = {"a": 10, "b": 20, "c": 10, "d": 100}
        self.admin.offsets_of = lambda groups: {group: {TP: self.at[group]} for group in groups}
        self.survey = LagSurvey(self.admin, ConnectionSettings("nowhere:1"), LagWindow(), timeout_seconds=1.0)

    def scan(self):
        states = self.survey.scan(list(self.at), NOW)
        return {group: state[TP].unread_since_ms for group, state in states.items()}

    def test_one_consumer_reads_for_groups_at_any_offsets(self):
        self.assertEqual({"a": NOW - 990, "b": NOW - 980, "c": NOW - 990, "d": None}, self.scan())
        self.assertEqual([{TP: [10, 20]}], self.reads)

    def test_a_sampled_message_is_read_again_only_after_retention_removed_it(self):
        self.scan()
        self.at["b"] = 30
        self.scan()
        self.assertEqual([{TP: [30]}], self.reads[1:])
        self.admin.first = 15
        self.assertEqual(NOW - 985, self.scan()["a"])
        self.assertEqual([{TP: [15]}], self.reads[2:])


class TestRetention(base.BaseTestCase):
    def test_after_a_deletion_the_next_message_is_read(self):
        kafka = self.useFixture(MemoryKafka())
        kafka.broker.create_topic("metrics", 1)
        kafka.producer().publish("metrics", [b"%d" % number for number in range(10)]).raise_for_undelivered()
        kafka.broker.delete_records("metrics", 0, 5)
        reader = log_reading.LogReader(kafka.connection(), most_seconds=2.0)

        self.assertEqual([5, 7], [each.offset for each in reader.at({TP: [2, 7]}, {TP: 10})])
        kafka.broker.delete_records("metrics", 0, 10)
        self.assertEqual([], list(reader.at({TP: [2, 7]}, {TP: 10})))
