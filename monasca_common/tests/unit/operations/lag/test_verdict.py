# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace

from msgspec import structs
from oslotest import base

from monasca_common.operations.lag.history import kept_scans
from monasca_common.operations.lag.verdict import (
    Commit,
    LagStatus,
    LagVerdict,
    LagWindow,
    LogScan,
    PartitionState,
    group_lag,
    partition_lag,
)

_MINUTE = 60_000
_NOW = 100 * _MINUTE
_WINDOW = LagWindow(commits=4, seconds=60.0)


def _commits(*offsets_and_ends, every_ms=30_000, until_ms=_NOW - 1000):
    """Return commits at intervals of ``every_ms``, the last one at ``until_ms``."""
    first = until_ms - every_ms * (len(offsets_and_ends) - 1)
    return tuple(Commit(first + number * every_ms, *each) for number, each in enumerate(offsets_and_ends))


def _state(commits, *, first=0, end=1000, unread_since_ms=_NOW - 10 * _MINUTE, retention_ms=None):
    return PartitionState(first, end, commits, unread_since_ms, retention_ms)


def _judged(state, now_ms=_NOW):
    return partition_lag(state, now_ms, _WINDOW)


# Offsets and ends at four commits half a minute apart, and the verdict if messages are unread.
_CASES = {
    "the lag falls": ([(10, 500), (100, 550), (300, 600), (500, 700)], LagStatus.OK),
    "the lag falls once and otherwise grows": ([(10, 500), (20, 600), (150, 610), (160, 900)], LagStatus.OK),
    "all messages were read at one commit": ([(10, 500), (500, 500), (510, 700), (520, 900)], LagStatus.OK),
    "the lag is constant and small": ([(10, 20), (20, 30), (30, 40), (40, 50)], LagStatus.OK),
    "the lag grows at each commit": ([(10, 500), (20, 600), (30, 700), (40, 900)], LagStatus.WARNING),
    "the lag grows or stays the same": ([(10, 500), (20, 510), (30, 600), (40, 610)], LagStatus.WARNING),
    "the offset stays the same and the lag grows": ([(10, 500), (10, 600), (10, 700), (10, 900)], LagStatus.STALL),
    "the offset and the lag stay the same": ([(10, 500), (10, 500), (10, 500), (10, 500)], LagStatus.STALL),
    "the lag is constant and equals the messages read in the window": (
        [(10, 40), (20, 50), (30, 60), (40, 70)],
        LagStatus.OK,
    ),
    "the lag is constant and exceeds the messages read in the window": (
        [(10, 41), (20, 51), (30, 61), (40, 71)],
        LagStatus.WARNING,
    ),
    "the lag stays at a million messages": ([(n, n + 1_000_000) for n in (10, 20, 30, 40)], LagStatus.WARNING),
    "the offset went back": ([(300, 500), (400, 500), (100, 500), (200, 500)], LagStatus.REWIND),
    "the offset went back and has recovered": ([(300, 500), (100, 500), (300, 500), (400, 500)], LagStatus.OK),
    "the offset went back at the last commit": ([(300, 500), (400, 500), (450, 500), (100, 500)], LagStatus.REWIND),
    "the offset went back after all messages were read": (
        [(500, 500), (500, 500), (100, 500), (120, 500)],
        LagStatus.REWIND,
    ),
}


# Times of commits in minutes before now, the age of the oldest unread message in minutes, and the verdict, for gaps of
# many lengths.
_GAPS = {
    "commits before the pause are ignored": ((3600, 3599, 3598, 2.5, 2.0), 2, LagStatus.STOP),
    "the group has read again for the length of a window": ((3600, 3599, 1.5, 0.5), 10, LagStatus.OK),
    "the silence is longer than the interval between the only two commits": ((30, 20), 21, LagStatus.STOP),
    "the silence is shorter than the interval between two commits": ((120, 60), 59, LagStatus.OK),
    "an hourly job is silent for less than an hour": ((220, 160, 100, 40), 39, LagStatus.OK),
    "an hourly job has stopped": ((400, 340, 280, 220), 219, LagStatus.STOP),
    "an hourly job has resumed after a weekend": ((4000, 3940, 120, 60), 59, LagStatus.OK),
    "a short pause does not extend the allowed silence": ((30, 29.5, 29, 20), 19, LagStatus.STOP),
    "one commit is late": ((10, 9, 8, 1.5), 1.5, LagStatus.OK),
}


class TestStatus(base.BaseTestCase):
    def test_the_moves_of_offsets_and_lags_determine_the_verdict(self):
        for name, (moves, expected) in _CASES.items():
            with self.subTest(name):
                self.assertEqual(expected, _judged(_state(_commits(*moves))).status)

    def test_pauses_between_commits_determine_the_allowed_silence(self):
        for name, (minutes_ago, waiting, expected) in _GAPS.items():
            with self.subTest(name):
                commits = tuple(
                    Commit(_NOW - round(ago * _MINUTE), 100 * number, 100 * number + 50)
                    for number, ago in enumerate(minutes_ago)
                )
                state = _state(commits, unread_since_ms=_NOW - round(waiting * _MINUTE))
                self.assertEqual(expected, _judged(state).status)

    def test_a_consumer_that_reads_in_bursts_has_the_time_between_bursts(self):
        minutes = (130, 129.8, 70, 69.8, 69.6, 69.4, 10, 9.8, 9.6, 9.4)
        commits = tuple(Commit(_NOW - round(ago * _MINUTE), round(-ago), 999) for ago in minutes)
        state = _state(commits, unread_since_ms=_NOW - 9 * _MINUTE)
        self.assertEqual(LagStatus.OK, partition_lag(state, _NOW, LagWindow(seconds=60.0)).status)

    def test_only_commits_after_a_long_pause_fill_the_window(self):
        commits = tuple(Commit(_NOW - minutes * _MINUTE, 5, 9) for minutes in (3600, 3599, 3598, 2))
        self.assertEqual(0.25, _judged(_state(commits)).completeness)

    def test_a_group_without_unread_messages_is_ok(self):
        for name, (moves, _) in _CASES.items():
            with self.subTest(name):
                lag = _judged(_state(_commits(*moves, until_ms=_NOW - 50 * _MINUTE), unread_since_ms=None))
                self.assertEqual((LagStatus.OK, 0, 0.0), (lag.status, lag.messages, lag.seconds))

    def test_the_offsets_of_markers_of_transactions_are_not_unread_messages(self):
        self.assertEqual(0, _judged(_state(_commits((999, 1000)), end=1001, unread_since_ms=None)).messages)

    def test_unread_messages_without_commits_for_longer_than_the_window_are_a_stop(self):
        moves = _CASES["the lag falls"][0]
        for silent_ms, expected in ((89_000, LagStatus.OK), (90_000, LagStatus.OK), (90_001, LagStatus.STOP)):
            with self.subTest(silent_ms=silent_ms):
                self.assertEqual(expected, _judged(_state(_commits(*moves, until_ms=_NOW - silent_ms))).status)

    def test_an_idle_consumer_has_one_window_from_the_first_new_message(self):
        commits = _commits((500, 500), until_ms=_NOW - 50 * _MINUTE)
        for age_ms, expected in ((1000, LagStatus.OK), (60_000, LagStatus.OK), (60_001, LagStatus.STOP)):
            with self.subTest(age_ms=age_ms):
                self.assertEqual(expected, _judged(_state(commits, unread_since_ms=_NOW - age_ms)).status)

    def test_a_timestamp_from_the_future_does_not_hide_a_stop(self):
        commits = _commits((400, 500), until_ms=_NOW - 50 * _MINUTE)
        self.assertEqual(LagStatus.STOP, _judged(_state(commits, unread_since_ms=_NOW + 9 * _MINUTE)).status)

    def test_one_commit_has_no_problem_before_the_end_of_the_window(self):
        self.assertEqual(LagStatus.OK, _judged(_state(_commits((10, 500), until_ms=_NOW - 60_000))).status)
        self.assertEqual(LagStatus.STOP, _judged(_state(_commits((10, 500), until_ms=_NOW - 60_001))).status)

    def test_commits_within_a_few_seconds_are_not_judged_as_a_stall(self):
        commits = _commits((10, 500), (10, 500), (10, 500), (10, 500), every_ms=1000)
        self.assertEqual(LagStatus.OK, _judged(_state(commits)).status)

    def test_an_added_partition_without_a_reader_is_a_stop(self):
        self.assertEqual(LagStatus.OK, _judged(_state((), unread_since_ms=_NOW - 59_000)).status)
        self.assertEqual(LagStatus.STOP, _judged(_state((), unread_since_ms=_NOW - 61_000)).status)

    def test_only_the_last_commits_of_the_window_count(self):
        commits = _commits((900, 950), *_CASES["the lag falls"][0])
        self.assertEqual(LagStatus.OK, _judged(_state(commits)).status)

    def test_a_log_that_ends_before_the_commit_is_not_a_negative_lag(self):
        lag = _judged(_state(_commits((800, 700), (800, 700)), end=700, unread_since_ms=_NOW - 1000))
        self.assertEqual((LagStatus.WARNING, 0, 100), (lag.status, lag.messages, lag.truncated))


def _scan(minutes_ago, end, position, *, first=0, is_unread=True, read_to=None):
    known = (position if is_unread else end) if read_to is None else read_to
    return LogScan(_NOW - round(minutes_ago * _MINUTE), first, end, position, is_unread, known or 0)


class TestAllowedLag(base.BaseTestCase):
    def test_a_stopped_group_within_the_allowed_number_of_unread_messages_is_ok(self):
        stopped = _state(_commits((990, 1000), until_ms=_NOW - 9 * _MINUTE))
        for allowed_lag, expected in ((9, LagStatus.STOP), (10, LagStatus.OK)):
            lag = partition_lag(stopped, _NOW, replace(_WINDOW, allowed_lag=allowed_lag))
            self.assertEqual((expected, 10), (lag.status, lag.messages))

    def test_even_a_few_messages_of_a_stopped_group_expire_soon(self):
        commits = _commits((10, 900), (450, 950), (950, 1000), until_ms=_NOW - 9 * _MINUTE)
        for retention_ms, expected in ((11 * _MINUTE, True), (30 * _MINUTE, False)):
            stopped = _state(commits, retention_ms=retention_ms)
            lag = partition_lag(stopped, _NOW, replace(_WINDOW, allowed_lag=100))
            self.assertEqual((LagStatus.OK, 50, expected), (lag.status, lag.messages, lag.expires_soon))


class TestPace(base.BaseTestCase):
    def test_a_growing_lag_of_messages_since_the_second_last_commit_is_ok(self):
        commits = _commits((100, 103), (200, 204), (300, 305), (400, 407))
        for age_ms, expected in ((30_000, LagStatus.OK), (30_001, LagStatus.WARNING), (-1, LagStatus.WARNING)):
            self.assertEqual(expected, _judged(_state(commits, end=410, unread_since_ms=_NOW - age_ms)).status)


class TestHistory(base.BaseTestCase):
    """Conditions that only earlier scans show."""

    def test_messages_with_old_timestamps_are_unread_since_the_last_scan_without_any(self):
        commits = _commits((500, 500), until_ms=_NOW - 50 * _MINUTE)
        cases = {
            "no history, so the timestamp counts": ((), LagStatus.STOP),
            "the messages arrived after the last scan": ((_scan(0.2, 500, 500, is_unread=False),), LagStatus.OK),
            "the messages arrived a minute ago": (
                (_scan(1.0, 500, 500, is_unread=False), _scan(0.5, 600, 500)),
                LagStatus.OK,
            ),
            "no member has read the messages for two minutes": (
                (_scan(2.1, 500, 500, is_unread=False), _scan(1.0, 600, 500)),
                LagStatus.STOP,
            ),
        }
        for name, (scans, expected) in cases.items():
            with self.subTest(name):
                state = PartitionState(0, 600, commits, _NOW - 40 * _MINUTE, None, scans=scans)
                self.assertEqual(expected, _judged(state).status)

    def test_the_time_of_a_group_without_commits_counts_from_its_first_scan(self):
        cases = {
            "the group is scanned for the first time": ((_scan(0.1, 100, None, is_unread=False),), LagStatus.OK, 20),
            "the group has been silent for more than a minute": (
                (_scan(1.1, 100, None, is_unread=False), _scan(0.5, 110, None)),
                LagStatus.STOP,
                20,
            ),
            "the first message has just arrived": ((_scan(9, 120, None, is_unread=False),), LagStatus.OK, 0),
        }
        for name, (scans, expected, unread) in cases.items():
            with self.subTest(name):
                since = _NOW - 8 * _MINUTE if unread else None
                lag = _judged(PartitionState(0, 120, (), since, None, scans=scans))
                self.assertEqual((expected, unread), (lag.status, lag.messages))

    def test_a_dead_group_is_a_stop_only_after_new_messages_arrive(self):
        commits = _commits((500, 500), until_ms=_NOW - 50 * _MINUTE)
        scans = (_scan(3, 500, 500, is_unread=False),)
        self.assertEqual(LagStatus.OK, _judged(PartitionState(0, 500, commits, None, None, scans=scans)).status)
        unread = PartitionState(0, 501, commits, _NOW - 2 * _MINUTE, None, scans=scans)
        self.assertEqual(LagStatus.STOP, _judged(unread).status)

    def test_markers_of_transactions_that_retention_removes_are_not_deleted_messages(self):
        read, unread = _scan(5, 500, 498, is_unread=False), _scan(1, 600, 498, read_to=500)
        cases = {
            "only a marker was unread": (498, 500, (read,), 0),
            "a marker and later messages were unread": (498, 520, (unread,), 20),
            "no scan shows whether messages were unread": (498, 500, (), 2),
            "messages were unread": (498, 500, (_scan(5, 500, 498),), 2),
            "the group has gone back since the scan": (400, 500, (read,), 100),
        }
        for name, (position, first, scans, expected) in cases.items():
            with self.subTest(name):
                state = PartitionState(first, 600, _commits((position, 600)), _NOW - 1000, None, scans=scans)
                self.assertEqual(expected, _judged(state).deleted)

    def test_scans_fill_the_window_of_a_group_that_rarely_commits(self):
        scans = tuple(_scan(4 - number, 500, 500, is_unread=False) for number in range(4))
        state = PartitionState(0, 500, _commits((500, 500)), None, None)
        self.assertEqual(0.25, _judged(state).completeness)
        self.assertEqual(1.0, _judged(PartitionState(0, 500, state.commits, None, None, scans=scans)).completeness)

    def test_headroom_by_size_is_the_time_until_the_start_of_the_log_reaches_the_position(self):
        # The start moves by 150 offsets every three minutes; the last move was two minutes ago.
        steady = (_scan(9, 900, 500), _scan(8, 910, 500, first=50), _scan(5, 920, 500, first=200))
        steady += (_scan(2, 950, 500, first=350),)
        burst = (*steady[:2], _scan(3, 920, 500, first=200), steady[3])
        idle = tuple(structs.replace(each, time_ms=each.time_ms - 50 * _MINUTE) for each in steady)
        one = (_scan(10, 700, 500), _scan(2, 900, 500, first=150))
        cases = {
            "the start moved by 300 offsets in two moves, 50 per minute": (steady, 800, 350, (450 / 50 - 2) * 60),
            "the last move was early, and the next move is due": (burst, 800, 350, (450 / 75 - 2) * 60),
            "the start did not move for days before its last moves": (
                (_scan(4000, 900, 500), *steady),
                800,
                350,
                (450 / 50 - 2) * 60,
            ),
            "the start has not moved since fewer messages arrive": (idle, 800, 350, (450 - 150) / (300 / 55) * 60),
            "after one move, the log loses as many messages as it gains": (one, 500, 150, (350 / 30 - 2) * 60),
            "after one move, no messages arrive": (
                (_scan(10, 1000, 500), _scan(2, 1000, 500, first=150)),
                500,
                150,
                None,
            ),
            "the next move reaches the position and is due": (steady, 360, 350, 0.0),
            "retention has overtaken the group": (steady, 200, 350, 0.0),
            "the start did not move": ((_scan(10, 900, 500),), 500, 0, None),
            "no history": ((), 500, 300, None),
        }
        for name, (scans, position, first, expected) in cases.items():
            with self.subTest(name):
                commits = _commits((position, 1000))
                state = PartitionState(first, 1000, commits, _NOW - _MINUTE, None, is_size_limited=True, scans=scans)
                room = _judged(state).headroom_seconds
                self.assertEqual(expected if expected is None else round(expected, 6), room and round(room, 6))

    def test_headroom_by_size_is_correct_after_the_first_move_following_a_long_pause(self):
        """The group stopped at 400 three days ago. Then the log becomes full, and its start moves by 10 offsets per
        minute."""
        stopped, waiting, began = (Commit(_NOW - 1000, 400, 400),), 3 * 24 * 60, _NOW
        scans = (LogScan(began, 0, 400, 400, is_unread=False, read_to=400),)
        for minute in range(1, waiting + 40):
            first = max(0, minute - waiting + 1) * 10
            now_ms = began + minute * _MINUTE
            state = PartitionState(
                first, 1000 + minute * 10, stopped, began + 1, None, is_size_limited=True, scans=scans
            )
            if minute >= waiting:
                self.assertEqual((400 - first) * 6.0, round(_judged(state, now_ms).headroom_seconds, 6))
            scan = LogScan(now_ms, first, state.end, 400, is_unread=True, read_to=400)
            scans = kept_scans((*scans, scan), _WINDOW)

    def test_headroom_is_the_shorter_of_time_and_size(self):
        scans = (_scan(10, 700, 500), _scan(2, 950, 500, first=150))
        for retention_ms, expected in ((2 * _MINUTE, 60.0), (90 * _MINUTE, 580.0)):
            state = PartitionState(
                150, 1000, _commits((500, 1000)), _NOW - _MINUTE, retention_ms, is_size_limited=True, scans=scans
            )
            self.assertEqual(expected, round(_judged(state).headroom_seconds, 6))

    def test_a_moving_start_without_a_size_limit_is_ignored(self):
        scans = (_scan(10, 900, 500), _scan(2, 950, 500, first=300))
        state = PartitionState(300, 1000, _commits((500, 1000)), _NOW - _MINUTE, None, scans=scans)
        self.assertIsNone(_judged(state).headroom_seconds)


class TestFigures(base.BaseTestCase):
    def test_unread_messages_are_counted_from_the_last_commit_and_aged_by_the_oldest(self):
        lag = _judged(_state(_commits((10, 500), (400, 900)), end=1000, unread_since_ms=_NOW - 2500))
        self.assertEqual((600, 2.5), (lag.messages, lag.seconds))

    def test_messages_deleted_unread_are_reported_but_not_counted_as_unread(self):
        lag = _judged(_state(_commits((400, 900)), first=450, end=1000))
        self.assertEqual((50, 550), (lag.deleted, lag.messages))

    def test_headroom_is_the_time_until_retention_reaches_the_oldest_unread_message(self):
        ages = {5 * _MINUTE: 300.0, 10 * _MINUTE: 0.0, 20 * _MINUTE: 0.0}
        for age_ms, expected in ages.items():
            state = _state(_commits((1, 2)), unread_since_ms=_NOW - age_ms, retention_ms=10 * _MINUTE)
            self.assertEqual(expected, _judged(state).headroom_seconds)

    def test_without_retention_or_unread_messages_there_is_no_headroom(self):
        self.assertIsNone(_judged(_state(_commits((1, 2)))).headroom_seconds)
        self.assertIsNone(_judged(_state(_commits((1, 2)), unread_since_ms=None, retention_ms=1)).headroom_seconds)

    def test_completeness_is_the_known_share_of_the_window(self):
        self.assertEqual(0.5, _judged(_state(_commits((1, 2), (2, 3)))).completeness)
        self.assertEqual(1.0, _judged(_state(_commits(*[(1, 2)] * 9))).completeness)


class TestLoss(base.BaseTestCase):
    """The time until unread messages are deleted if the group keeps its speed."""

    def lag(self, offsets, *, least_headroom=0.25, retention=60, **facts):
        """Return the verdict on a log with one message per second for the last 40 minutes and a retention of 60
        minutes. ``offsets``: committed every 20 s, the last one a second ago."""
        end = 2400 + offsets[-1]
        commits = _commits(*[(offset, end - 100) for offset in offsets], every_ms=20_000)
        retention_ms = None if retention is None else retention * _MINUTE
        state = PartitionState(0, end, commits, _NOW - 40 * _MINUTE, retention_ms, **facts)
        return partition_lag(state, _NOW, LagWindow(commits=4, seconds=60.0, least_headroom=least_headroom))

    def test_retention_overtakes_a_group_that_reads_slower_than_messages_arrive(self):
        # The numbers of offsets read in 61 s, while one message per second arrives.
        cases = {
            "the group reads nothing, so retention overtakes it as early as possible": ((0, 0, 0, 0), 1200.0),
            "the group reads at half the speed, so the time doubles": ((0, 10, 20, 30.5), 2400.0),
            "the group reads as fast as messages arrive": ((0, 20, 40, 61), None),
            "the group reads ten times as fast as messages arrive": ((0, 200, 400, 610), None),
            "the offset went back": ((610, 620, 630, 10), 1200.0),
        }
        for name, (offsets, expected) in cases.items():
            with self.subTest(name):
                lag = self.lag(offsets)
                self.assertEqual((1200.0, expected), (lag.headroom_seconds, lag.lost_in_seconds))

    def test_a_stopped_group_has_no_speed(self):
        commits = _commits((0, 900), (300, 900), until_ms=_NOW - 2 * _MINUTE)
        lag = _judged(PartitionState(0, 2700, commits, _NOW - 40 * _MINUTE, 60 * _MINUTE))
        self.assertEqual((LagStatus.STOP, 1200.0), (lag.status, lag.lost_in_seconds))

    def test_retention_by_size_also_deletes_unread_messages(self):
        def at(first, offsets):
            scans = (_scan(5, 0, 0), _scan(4, 0, 0, first=first - 60), _scan(3, 0, 0, first=first))
            state = PartitionState(
                first,
                9000,
                _commits(*[(each, 9000) for each in offsets], every_ms=20_000),
                _NOW - _MINUTE,
                is_size_limited=True,
                scans=scans,
            )
            return _judged(state)

        # A move of 60 offsets per minute until two minutes ago: 60 offsets in three minutes.
        self.assertEqual((360.0, 360.0), _rooms(at(600, (780, 780, 780, 780))))
        self.assertEqual((360.0, 720.0), _rooms(at(600, (780 - 61 / 6, 775, 777, 780))))
        self.assertEqual((360.0, None), _rooms(at(600, (700, 720, 740, 780))))

    def test_unread_messages_expire_soon_when_little_of_their_time_is_left(self):
        cases = {
            "a third of 60 minutes remains and a quarter is required": ((0, 0, 0, 0), 0.25, False),
            "a third of 60 minutes remains and a third is required": ((0, 0, 0, 0), 1 / 3, True),
            "retention overtakes the group in 40 of 60 minutes and half is required": ((0, 10, 20, 30.5), 0.5, False),
            "retention overtakes the group in 40 of 60 minutes and 45 are required": ((0, 10, 20, 30.5), 0.75, True),
            "the group reads faster than retention deletes": ((0, 200, 400, 610), 1.0, False),
        }
        for name, (offsets, least, expected) in cases.items():
            with self.subTest(name):
                self.assertEqual(expected, self.lag(offsets, least_headroom=least).expires_soon)

    def test_one_unread_message_of_a_topic_with_short_retention_does_not_expire_soon(self):
        state = _state(_commits((1, 2), (1, 3)), end=3, unread_since_ms=_NOW - 1000, retention_ms=10 * _MINUTE)
        self.assertFalse(_judged(state).expires_soon)
        self.assertTrue(_judged(replace(state, unread_since_ms=_NOW - 11 * _MINUTE)).expires_soon)

    def test_losses_are_errors_even_with_a_good_status(self):
        well = LagVerdict(LagStatus.OK, 5, 1.0, 0, 100.0, 1.0)
        self.assertFalse(well.is_error)
        self.assertTrue(replace(well, deleted=1).is_error)
        self.assertTrue(replace(well, expires_soon=True).is_error)
        self.assertTrue(replace(well, truncated=1).is_error)
        self.assertTrue(replace(well, status=LagStatus.STOP).is_error)


def _rooms(lag):
    return lag.headroom_seconds, lag.lost_in_seconds and round(lag.lost_in_seconds, 6)


class TestGroup(base.BaseTestCase):
    def test_the_status_of_a_group_is_that_of_its_worst_partition(self):
        parts = [
            LagVerdict(LagStatus.OK, 5, 1.0, 0, 100.0, 1.0, lost_in_seconds=100.0, expires_soon=True),
            LagVerdict(LagStatus.STALL, 7, 3.0, 2, 40.0, 0.5, lost_in_seconds=400.0),
            LagVerdict(LagStatus.WARNING, 1, 9.0, 0, None, 1.0),
        ]
        group = group_lag(parts)
        self.assertEqual((LagStatus.STALL, 13, 9.0), (group.status, group.messages, group.seconds))
        self.assertEqual((2, 40.0, 0.5), (group.deleted, group.headroom_seconds, group.completeness))
        self.assertEqual((100.0, True), (group.lost_in_seconds, group.expires_soon))

    def test_a_group_without_partitions_has_no_lag(self):
        group = group_lag([])
        self.assertEqual((LagStatus.OK, 0, None, 1.0), (group.status, group.messages, group.headroom_seconds, 1.0))

    def test_stall_stop_rewind_and_offline_are_errors(self):
        errors = {status for status in LagStatus if status.is_error}
        self.assertEqual({LagStatus.STALL, LagStatus.STOP, LagStatus.REWIND, LagStatus.OFFLINE}, errors)
