# SPDX-License-Identifier: Apache-2.0
"""The contract of rows that can never be stored: the error names each, and no row of the call is stored."""

import contextlib
import gc
import weakref
from typing import Any

from monasca_common.storage.base import Capability, Kind, Written
from monasca_common.storage.errors import RowsRefused
from monasca_common.tests.contracts.storage.database import NOW_MS, needs
from monasca_common.tests.contracts.storage.scenario import Scenario, make_series, measurement, row

_DAY_MS = 86_400_000
_NO_TEXT = "an unpaired surrogate: \ud83d"  # cannot be encoded
_NO_JSON = f'{{"a": "{_NO_TEXT}"}}'
_BAD_FIELDS = {
    Kind.METRICS: {"value_meta": _NO_JSON},
    Kind.ALARM_HISTORY: {"reason": _NO_TEXT},
    Kind.LOGS: {"message": _NO_TEXT},
    Kind.EVENTS: {"payload": _NO_JSON},
}


def _bad(kind: Kind, number: int = 0) -> Any:
    """Return a row that every database refuses."""
    return row(kind, number)._replace(**_BAD_FIELDS[kind])


class _Values(list[Any]):
    """A list to which a weak reference is possible."""


class RefusalContract(Scenario):
    def test_the_error_names_the_bad_rows_and_nothing_is_stored(self) -> None:
        for kind in self.database.storage().kinds:
            rows = [row(kind, n) for n in range(100)]
            bad = {0, 41, 42, 99}
            for position in bad:
                rows[position] = _bad(kind, position)
            error = self.assertRaises(RowsRefused, self.write, self.writer, kind, rows, topic=kind)
            self.assertEqual(bad, set(error.reasons))
            self.assertTrue(all(error.reasons.values()))
            self.assertEqual([], self.stored(kind))

    def test_without_the_bad_rows_the_rest_is_stored(self) -> None:
        for kind in self.database.storage().kinds:
            self.assertRaises(RowsRefused, self.write, self.writer, kind, [row(kind), _bad(kind)], topic=kind)
            self.assertEqual(Written(stored=1), self.write(self.writer, kind, [row(kind)], topic=kind))
            self.assertEqual(1, len(self.stored(kind)))

    def test_rows_are_released_after_the_call_without_a_collection(self) -> None:
        self.write(self.writer, Kind.METRICS, [measurement(1)])
        self.addCleanup(gc.enable)
        gc.disable()
        released = []
        for start, last in ((1, measurement(1)), (3, _bad(Kind.METRICS))):  # a stored row, and a row to refuse
            values = _Values([measurement(start + 1), last])
            released.append(weakref.ref(values))
            with contextlib.suppress(RowsRefused):
                self.write(self.writer, Kind.METRICS, values, start)
        del values
        self.assertEqual([None, None], [each() for each in released])

    def test_a_bad_row_is_found_among_stored_rows(self) -> None:
        rows = [measurement(n) for n in range(10)]
        self.write(self.writer, Kind.METRICS, rows)
        error = self.assertRaises(RowsRefused, self.write, self.writer, Kind.METRICS, [*rows, _bad(Kind.METRICS)], 10)
        self.assertEqual({10}, set(error.reasons))

    def test_rows_of_a_bad_series_are_refused(self) -> None:
        series = make_series("name")
        bad = measurement(series=type(series)(b"\x01" * 16, "tenant", "region", "name", {"host": _NO_TEXT}))
        rows = [measurement(1), bad, measurement(2), bad._replace(time_ms=NOW_MS + 1)]
        error = self.assertRaises(RowsRefused, self.write, self.writer, Kind.METRICS, rows)
        self.assertEqual({1, 3}, set(error.reasons))

    @needs(Capability.TRANSACTIONAL_OFFSETS)
    def test_a_refused_call_does_not_change_the_offset(self) -> None:
        self.write(self.writer, Kind.METRICS, [measurement(0)])
        for bad in (_bad(Kind.METRICS), measurement(1, time_ms=0)):
            self.assertRaises(RowsRefused, self.write, self.writer, Kind.METRICS, [measurement(1), bad], 1)
            self.assertEqual(1, self.next_offset(self.writer))

    def test_positions_include_skipped_rows(self) -> None:
        rows = [measurement(n) for n in range(6)]
        self.write(self.writer, Kind.METRICS, rows[:3])
        for bad in (_bad(Kind.METRICS, 4), measurement(4, time_ms=0)):
            given = [*rows[:4], bad, rows[5]]
            error = self.assertRaises(RowsRefused, self.write, self.writer, Kind.METRICS, given)
            self.assertEqual({4}, set(error.reasons))

    @needs(Capability.TRANSACTIONAL_OFFSETS)
    def test_skipped_rows_are_not_refused(self) -> None:
        self.write(self.writer, Kind.METRICS, [measurement(0)])
        self.database.clock.now_ms += 100 * _DAY_MS
        self.assertEqual(Written(skipped=1), self.write(self.writer, Kind.METRICS, [measurement(0)]))

    def test_times_outside_retention_and_tolerance_are_refused(self) -> None:
        settings = self.database.settings
        for kind in self.database.storage().kinds:
            earliest = NOW_MS - settings.retention_of(kind) * _DAY_MS
            latest = NOW_MS + settings.future_tolerance_seconds * 1000
            times = (earliest - 1, NOW_MS, latest + 1, 0, 2**53, -(2**62))
            rows = [row(kind, n, time_ms=time_ms) for n, time_ms in enumerate(times)]
            error = self.assertRaises(RowsRefused, self.write, self.writer, kind, rows, topic=kind)
            self.assertEqual({0, 2, 3, 4, 5}, set(error.reasons))
            self.assertIn("older", error.reasons[0])
            self.assertIn("future", error.reasons[2])
            self.assertEqual([], self.stored(kind))

    def test_times_at_both_limits_are_stored(self) -> None:
        settings = self.database.settings
        for kind in self.database.storage().kinds:
            earliest = NOW_MS - settings.retention_of(kind) * _DAY_MS
            latest = NOW_MS + settings.future_tolerance_seconds * 1000
            rows = [row(kind, n, time_ms=time_ms) for n, time_ms in enumerate((earliest, latest))]
            self.write(self.writer, kind, rows, topic=kind)
            self.assertEqual(2, len(self.stored(kind)))
