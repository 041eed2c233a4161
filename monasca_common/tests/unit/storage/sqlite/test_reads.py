# SPDX-License-Identifier: Apache-2.0
"""The reads of SQL databases: filters, order, pages, windows. Tests with PostgreSQL inherit the mixin, too."""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from monasca_common.models.series import Series, series_id
from monasca_common.storage.base import Kind
from monasca_common.storage.errors import QueryTooLarge
from monasca_common.storage.reader import (
    MAX_ROWS,
    AlarmFilter,
    PageOf,
    Point,
    Position,
    SeriesFilter,
    Span,
    StoredTransition,
)
from monasca_common.storage.sql.reader import SqlReader
from monasca_common.tests.contracts.storage.database import NOW_MS
from monasca_common.tests.contracts.storage.scenario import Scenario, make_series, measurement, message_id, row
from monasca_common.tests.unit.storage.sqlite_case import SqliteTestCase

T = TypeVar("T")

ALL = PageOf(1000)
_MINUTE_MS = 60_000
_EVER = Span(NOW_MS - 86_400_000)


class ReadsContract(Scenario):
    def test_series_are_ordered_by_id_and_paged(self) -> None:
        all_of_them = sorted((make_series(host=f"host-{n}") for n in range(5)), key=lambda series: series.id)
        reader = self._reader_of(*all_of_them)
        tenants = SeriesFilter("tenant")
        self.assertEqual(all_of_them, reader.series(tenants, ALL))
        self.assertEqual(all_of_them[:2], reader.series(tenants, PageOf(2)))
        self.assertEqual(all_of_them[2:4], reader.series(tenants, PageOf(2, after=all_of_them[1].id.hex())))
        self.assertEqual([], reader.series(tenants, PageOf(2, after=all_of_them[4].id.hex())))

    def test_a_tenant_sees_only_its_own_series(self) -> None:
        mine, yours = make_series(host="a"), make_series(tenant="other", host="b")
        reader = self._reader_of(mine, yours)
        which = SeriesFilter("tenant")
        self.assertEqual([mine], reader.series(which, ALL))
        self.assertEqual(["a"], reader.dimension_values(which, "host", ALL))
        self.assertEqual([], reader.names(SeriesFilter("nobody"), ALL))

    def test_series_are_filtered_by_name_and_region(self) -> None:
        cpu, mem = make_series("cpu"), make_series("mem")
        far = Series(series_id("tenant", "far", "cpu", {}), "tenant", "far", "cpu", {})
        reader = self._reader_of(cpu, mem, far)
        self.assertEqual({cpu.id, far.id}, _ids(reader.series(SeriesFilter("tenant", name="cpu"), ALL)))
        self.assertEqual([far], reader.series(SeriesFilter("tenant", region="far"), ALL))
        self.assertEqual([], reader.series(SeriesFilter("tenant", name="disk"), ALL))

    def test_series_are_filtered_by_dimensions(self) -> None:
        a, b = make_series(host="a", zone="1"), make_series(host="b", zone="1")
        c, bare = make_series(host="c"), make_series()
        reader = self._reader_of(a, b, c, bare)

        def found(**dimensions: tuple[str, ...]) -> set[bytes]:
            return _ids(reader.series(SeriesFilter("tenant", dimensions=dimensions), ALL))

        self.assertEqual({a.id}, found(host=("a",)))
        self.assertEqual({a.id, c.id}, found(host=("a", "c")))
        self.assertEqual({a.id, b.id, c.id}, found(host=()))
        self.assertEqual({b.id}, found(host=("b", "c"), zone=("1",)))
        self.assertEqual({a.id, b.id}, found(host=(), zone=()))
        self.assertEqual({a.id, b.id}, found(host=("a", "b", *map(str, range(50))), zone=("1",)))
        self.assertEqual({b.id}, found(host=("b", *map(str, range(50))), zone=("1", "2")))
        self.assertEqual(set(), found(host=("a",), zone=("1",), **{f"none{n}": () for n in range(50)}))
        self.assertEqual(set(), found(zone=("2",)))

    def test_names_keys_and_values_are_never_parsed_as_syntax(self) -> None:
        odd = ["it's", 'a"b', "a.b", "$.a", "a[0]", "100%", "%s", ":x", "a\\b", "?", "日本語", "{}", "null", "a b"]
        every = [make_series(text, **{text: text}) for text in odd]
        reader = self._reader_of(*every)
        for series, text in zip(every, odd, strict=True):
            which = SeriesFilter("tenant", name=text, dimensions={text: (text, "else")})
            self.assertEqual([series], reader.series(which, ALL), text)
            self.assertEqual([series], reader.series(SeriesFilter("tenant", dimensions={text: ()}), ALL), text)
            self.assertEqual([text], reader.dimension_values(SeriesFilter("tenant"), text, ALL))
        self.assertEqual(sorted(odd, key=str.encode), reader.dimension_names(SeriesFilter("tenant"), ALL))

    def test_series_are_filtered_by_time_with_inclusive_limits(self) -> None:
        series = make_series()
        reader = self._reader_of_rows([measurement(series=series, time_ms=NOW_MS)])

        def found(start: int | None, end: int | None) -> bool:
            which = SeriesFilter("tenant", start_ms=start, end_ms=end)
            names, keys = reader.names(which, ALL), reader.series(which, ALL)
            self.assertEqual(len(names), len(keys))
            return bool(names)

        self.assertTrue(found(NOW_MS, NOW_MS))
        self.assertTrue(found(NOW_MS, None))
        self.assertTrue(found(None, NOW_MS))
        self.assertFalse(found(NOW_MS + 1, None))
        self.assertFalse(found(None, NOW_MS - 1))

    def test_names_are_distinct_and_ordered_by_bytes_and_a_page_starts_after_any_text(self) -> None:
        names = ["B", "Z.z", "a", "a-b", "a.b", "a1", "aB", "a_b", "ab", "é", "日"]
        reader = self._reader_of(*(make_series(name, host=host) for name in reversed(names) for host in "xy"))
        self.assertEqual(names, reader.names(SeriesFilter("tenant"), ALL))
        self.assertEqual(["a.b", "a1"], reader.names(SeriesFilter("tenant"), PageOf(2, after="a-bc")))

    def test_dimension_names_and_values_belong_to_the_selected_series(self) -> None:
        reader = self._reader_of(
            make_series("cpu", host="b", core="0"), make_series("cpu", host="a"), make_series("mem", host="c", bank="1")
        )
        cpu, every = SeriesFilter("tenant", name="cpu"), SeriesFilter("tenant")
        self.assertEqual(["core", "host"], reader.dimension_names(cpu, ALL))
        self.assertEqual(["core", "host"], reader.dimension_names(every, PageOf(2, after="bank")))
        self.assertEqual(["a", "b"], reader.dimension_values(cpu, "host", ALL))
        self.assertEqual(["b", "c"], reader.dimension_values(every, "host", PageOf(2, after="a")))
        self.assertEqual(["b"], reader.dimension_values(SeriesFilter("tenant", dimensions={"core": ()}), "host", ALL))
        self.assertEqual([], reader.dimension_values(every, "rack", ALL))

    def test_measurements_are_read_unchanged(self) -> None:
        series = make_series()
        reader = self._reader_of_rows(
            [
                measurement(series=series, value=0.1, value_meta='{"why": "日本"}'),
                measurement(series=series, value=-1e300, time_ms=NOW_MS + 1),
            ]
        )
        points = _measurements(reader, [[series.id]], _EVER, limit=10)
        self.assertEqual(
            [
                Point(0, NOW_MS, 0.1, {"why": "日本"}, series.id),
                Point(0, NOW_MS + 1, -1e300, {}, series.id),
            ],
            points,
        )

    def test_a_span_includes_both_ends(self) -> None:
        series = make_series()
        reader = self._reader_of_rows([measurement(series=series, time_ms=NOW_MS + n) for n in range(5)])
        points = _measurements(reader, [[series.id]], Span(NOW_MS + 1, NOW_MS + 3), limit=10)
        self.assertEqual([NOW_MS + 1, NOW_MS + 2, NOW_MS + 3], [point.time_ms for point in points])
        (period,) = reader.statistics([[series.id]], ["count"], Span(NOW_MS + 1, NOW_MS + 3), period_ms=60_000, limit=9)
        self.assertEqual((3.0,), period.values)

    def test_merged_series_are_paged_within_one_time(self) -> None:
        ids, reader = self._three_series_of_four_rows()
        whole = _measurements(reader, [ids], _EVER, limit=100)
        self.assertEqual(
            [(NOW_MS + n, one) for n in range(4) for one in ids], [(p.time_ms, p.series_id) for p in whole]
        )
        paged = _paged(2, lambda last: _measurements(reader, [ids], _EVER, limit=2, after=_after(last)))
        self.assertEqual(whole, paged)
        after_a_time = _measurements(reader, [ids], _EVER, limit=100, after=Position(NOW_MS + 1))
        self.assertEqual(whole[6:], after_a_time)

    def test_groups_are_read_in_order_with_one_limit(self) -> None:
        ids, reader = self._three_series_of_four_rows()
        apart = [[one] for one in ids]
        rows = _measurements(reader, apart, _EVER, limit=100)
        self.assertEqual([(n, one, NOW_MS + t) for n, one in enumerate(ids) for t in range(4)], _places(rows))
        self.assertEqual(rows[:6], _measurements(reader, apart, _EVER, limit=6))
        after = _measurements(reader, apart, _EVER, limit=100, after=Position(NOW_MS + 2))
        self.assertEqual(rows[3:], after, "the position applies only to the first group")
        mixed = _measurements(reader, [ids[1:], ids[:1]], _EVER, limit=100)
        self.assertEqual([0] * 8 + [1] * 4, [point.group for point in mixed])

    def test_one_read_returns_2000_series(self) -> None:
        every = [make_series(number=str(n)) for n in range(2000)]
        reader = self._reader_of(*every)
        ids = sorted(series.id for series in every)
        self.assertEqual(2000, len(_measurements(reader, [[one] for one in ids], _EVER, limit=5000)))
        self.assertEqual(2000, len(_measurements(reader, [ids], _EVER, limit=5000)))
        (period,) = reader.statistics([ids], ["count"], _EVER, period_ms=10**9, limit=10)
        self.assertEqual((2000.0,), period.values)
        self.assertEqual(
            2000, len(reader.statistics([[one] for one in ids], ["count"], _EVER, period_ms=10**9, limit=5000))
        )

    def test_statistics_have_no_empty_windows(self) -> None:
        series = make_series()
        times = {0: 1.0, 59_999: 5.0, 60_000: 7.0, 180_000: 2.5}
        rows = [measurement(series=series, time_ms=NOW_MS + after, value=value) for after, value in times.items()]
        reader = self._reader_of_rows(rows)
        functions = ["sum", "avg", "count", "max", "min"]
        periods = reader.statistics([[series.id]], functions, Span(NOW_MS), period_ms=_MINUTE_MS, limit=10)
        self.assertEqual(
            [
                (0, NOW_MS, (6.0, 3.0, 2.0, 5.0, 1.0)),
                (0, NOW_MS + 60_000, (7.0, 7.0, 1.0, 7.0, 7.0)),
                (0, NOW_MS + 180_000, (2.5, 2.5, 1.0, 2.5, 2.5)),
            ],
            periods,
        )

    def test_statistics_continue_after_a_window_of_the_first_group(self) -> None:
        ids, reader = self._three_series_of_four_rows()
        groups = [ids[:2], ids[2:]]
        span = Span(NOW_MS)

        def asked(limit: int, after_ms: int | None) -> list[Any]:
            return reader.statistics(groups, ["count"], span, period_ms=2, limit=limit, after_ms=after_ms)

        whole = asked(10, None)
        self.assertEqual([(0, NOW_MS), (0, NOW_MS + 2), (1, NOW_MS), (1, NOW_MS + 2)], [p[:2] for p in whole])
        self.assertEqual([(4.0,), (4.0,), (2.0,), (2.0,)], [p.values for p in whole])
        self.assertEqual(whole[1:3], asked(2, NOW_MS))
        self.assertEqual(whole[1:], asked(10, NOW_MS + 1))
        self.assertEqual(whole[2:], asked(10, NOW_MS + 2))

    def test_measurements_and_statistics_have_only_finite_values(self) -> None:
        series = make_series()
        values = (1.0, math.nan, math.inf, 2.0, -math.inf, sys.float_info.max)
        rows = [measurement(series=series, time_ms=NOW_MS + n, value=value) for n, value in enumerate(values)]
        reader = self._reader_of_rows(rows)
        finite = _measurements(reader, [[series.id]], _EVER, limit=3)
        self.assertEqual([1.0, 2.0, sys.float_info.max], [point.value for point in finite])
        whole = _measurements(reader, [[series.id]], _EVER, limit=10, only_finite=False)
        self.assertEqual(list(map(repr, values)), [repr(point.value) for point in whole])
        (found,) = reader.statistics([[series.id]], ["count", "min", "max"], _EVER, period_ms=10**9, limit=10)
        self.assertEqual((3.0, 1.0, sys.float_info.max), found.values)

    def test_a_sum_above_the_range_of_a_double_is_refused(self) -> None:
        series = make_series()
        rows = [measurement(series=series, time_ms=NOW_MS + n, value=1.7e308) for n in range(2)]
        reader = self._reader_of_rows(rows)
        self.assertRaises(QueryTooLarge, reader.statistics, [[series.id]], ["sum"], _EVER, period_ms=10**9, limit=10)

    def test_more_rows_than_allowed_are_refused(self) -> None:
        reader = self._reader_of(make_series())
        limit = MAX_ROWS + 2
        self.assertRaises(QueryTooLarge, reader.series, SeriesFilter("tenant"), PageOf(limit))
        self.assertRaises(QueryTooLarge, _measurements, reader, [[b"x" * 16]], _EVER, limit=limit)

    def test_closing_an_iterator_releases_its_connection(self) -> None:
        reader = self._reader_of(*(make_series(number=str(n)) for n in range(200)))
        whole = reader.series(SeriesFilter("tenant"), ALL)
        for _ in range(self.database.settings.read_connections + 1):
            with contextlib.closing(reader.iter_series(SeriesFilter("tenant"), ALL)) as found:
                self.assertEqual(whole[0], next(found))
        self.assertEqual(whole, reader.series(SeriesFilter("tenant"), ALL))

    def test_transitions_are_ordered_by_time_and_paged(self) -> None:
        rows = [row(Kind.ALARM_HISTORY, n % 2, time_ms=NOW_MS + n // 2) for n in range(4)]
        reader = self._reader_after(Kind.ALARM_HISTORY, rows)
        which = AlarmFilter("tenant")
        whole = _history(reader, which, ALL)
        self.assertEqual([NOW_MS, NOW_MS, NOW_MS + 1, NOW_MS + 1], [one.time_ms for one in whole])
        self.assertEqual(
            [f"{NOW_MS}-{message_id(0).hex()}", f"{NOW_MS}-{message_id(1).hex()}"], [o.id for o in whole[:2]]
        )
        paged = _paged(1, lambda last: _history(reader, which, PageOf(1, last.id if last else None)))
        self.assertEqual(whole, paged)
        self.assertEqual([], _history(reader, AlarmFilter("other"), ALL))

    def test_transitions_are_filtered_by_alarm_time_and_dimensions_of_one_metric(self) -> None:
        rows = [row(Kind.ALARM_HISTORY, n, time_ms=NOW_MS + n) for n in range(3)]
        reader = self._reader_after(Kind.ALARM_HISTORY, rows)

        def found(**chosen: Any) -> list[str]:
            return [one.alarm_id for one in _history(reader, AlarmFilter("tenant", **chosen), ALL)]

        self.assertEqual(["alarm-1"], found(alarm_id="alarm-1"))
        self.assertEqual(["alarm-1", "alarm-2"], found(start_ms=NOW_MS + 1))
        self.assertEqual(["alarm-0"], found(end_ms=NOW_MS))
        self.assertEqual(["alarm-0", "alarm-2"], found(dimensions={"host": ("host-0", "host-2")}))
        self.assertEqual(["alarm-0", "alarm-1", "alarm-2"], found(dimensions={"host": ()}))
        self.assertEqual([], found(dimensions={"host": (), "zone": ()}))
        (one,) = _history(reader, AlarmFilter("tenant", alarm_id="alarm-2"), ALL)
        self.assertEqual([{"name": "cpu.user", "dimensions": {"host": "host-2"}}], one.metrics)
        self.assertEqual(("OK", "ALARM", []), (one.old_state, one.new_state, one.sub_alarms))

    def _reader_of(self, *series: Series) -> SqlReader:
        """Return a reader of a database with one measurement of each series."""
        return self._reader_of_rows([measurement(series=one) for one in series])

    def _reader_of_rows(self, rows: Sequence[Any]) -> SqlReader:
        return self._reader_after(Kind.METRICS, rows)

    def _reader_after(self, kind: Kind, rows: Sequence[Any]) -> SqlReader:
        self.write(self.database.writer(), kind, rows)
        reader: SqlReader = self.database.storage().open_reader()
        self.addCleanup(reader.close)
        return reader

    def _three_series_of_four_rows(self) -> tuple[list[bytes], SqlReader]:
        every = [make_series(host=host) for host in "abc"]
        rows = [measurement(series=one, time_ms=NOW_MS + t) for one in every for t in range(4)]
        return sorted(one.id for one in every), self._reader_of_rows(rows)


class SqliteReadsTest(ReadsContract, SqliteTestCase):  # type: ignore[misc, unused-ignore]
    pass


def _measurements(reader: SqlReader, *arguments: Any, **named: Any) -> list[Point]:
    return list(reader.iter_measurements(*arguments, **named))


def _history(reader: SqlReader, which: AlarmFilter, page: PageOf) -> list[StoredTransition]:
    return list(reader.iter_alarm_history(which, page))


def _ids(series: Sequence[Series]) -> set[bytes]:
    return {one.id for one in series}


def _places(points: Sequence[Point]) -> list[tuple[int, bytes, int]]:
    return [(point.group, point.series_id, point.time_ms) for point in points]


def _after(last: Point | None) -> Position | None:
    return None if last is None else Position(last.time_ms, last.series_id)


def _paged(size: int, ask: Callable[[T | None], Sequence[T]]) -> list[T]:
    """Return the elements of all pages; each request continues after the last element of the previous page."""
    found: list[T] = []
    while page := ask(found[-1] if found else None):
        assert len(page) <= size
        found += page
    return found
