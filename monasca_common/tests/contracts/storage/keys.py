# SPDX-License-Identifier: Apache-2.0
"""The contract of keys: a repeated message is stored once, regardless of the order of arrival."""

import itertools
import math
import random
from collections.abc import Sequence

from monasca_common.models.numbers import NAN
from monasca_common.models.rows import Measurement
from monasca_common.storage.base import Capability, Kind, Written
from monasca_common.storage.errors import RowsRefused
from monasca_common.tests.contracts.storage.database import NOW_MS, as_json, needs
from monasca_common.tests.contracts.storage.scenario import Scenario, make_series, measurement, message_id, row

_NIGHT_MS = 12 * 3_600_000
_META = as_json({"a": "b"}), as_json({"a": "c"})


def _version(version: int, value: float, value_meta: str | None = None) -> Measurement:
    """Return one of several rows with the same key."""
    return measurement(value=value, value_meta=value_meta, version=version, series=make_series("key"))


@needs(Capability.TRANSACTIONAL_OFFSETS)
class KeyContract(Scenario):
    def test_a_stored_measurement_counts_as_repeated(self) -> None:
        given = [measurement(0), measurement(1, value_meta=_META[0])]
        self.assertEqual(Written(stored=2), self.write(self.writer, Kind.METRICS, given))
        self.assertEqual(Written(repeated=2), self.write(self.writer, Kind.METRICS, given, 2))
        mixed = [*given, measurement(2)]
        self.assertEqual(Written(stored=1, repeated=2), self.write(self.writer, Kind.METRICS, mixed, 4))

    def test_nan_is_equal_to_itself_and_greater_than_every_number(self) -> None:
        rows = [_version(1, value) for value in (NAN, math.inf, NAN, -math.inf)]
        for turn, order in enumerate(itertools.permutations(rows)):
            given = [each._replace(time_ms=NOW_MS + turn) for each in order]
            written = self.write(self.writer, Kind.METRICS, given, topic=f"one-{turn}")
            self.assertEqual(Written(stored=1, repeated=1, conflicting=2), written)
            for offset, each in enumerate(given, 4):
                outcome = Written(repeated=1) if each.value is NAN else Written(conflicting=1)
                self.assertEqual(outcome, self.write(self.writer, Kind.METRICS, [each], offset, topic=f"one-{turn}"))
        self.assertEqual({"nan"}, {repr(each.value) for each in self.stored(Kind.METRICS)})

    def test_another_value_counts_as_conflicting(self) -> None:
        self.write(self.writer, Kind.METRICS, [_version(2, 1.0)])
        for number, other in enumerate((_version(3, 2.0), _version(1, 9.0), _version(3, 2.0, _META[0])), 1):
            self.assertEqual(Written(conflicting=1), self.write(self.writer, Kind.METRICS, [other], number))

    def test_the_same_value_in_a_later_version_is_repeated_and_updates_the_version(self) -> None:
        self.write(self.writer, Kind.METRICS, [_version(1, 5.0)])
        self.assertEqual(Written(repeated=1), self.write(self.writer, Kind.METRICS, [_version(3, 5.0)], 1))
        self.assertEqual([_version(3, 5.0)], self.stored(Kind.METRICS))

    def test_the_greatest_row_of_a_key_is_kept_in_any_order(self) -> None:
        rising = [_version(1, 5.0), _version(2, 7.0), _version(3, 5.0)]
        by_value = [_version(1, -1.0), _version(1, 3.0, _META[0]), _version(1, 10.0)]
        by_meta = [_version(1, 1.0), _version(1, 1.0, _META[0]), _version(1, 1.0, _META[1])]
        for number, ranked in enumerate((rising, by_value, by_meta)):
            for turn, order in enumerate(itertools.permutations(ranked)):
                self._one_call_each(order, ranked[-1], time_ms=NOW_MS - 1000 * number - 2 * turn)
                self._all_in_one_call(order, ranked[-1], time_ms=NOW_MS - 1000 * number - 2 * turn - 1)

    def _one_call_each(self, order: Sequence[Measurement], last: Measurement, *, time_ms: int) -> None:
        writer = self.database.writer()
        for offset, each in enumerate(order):
            self.write(writer, Kind.METRICS, [each._replace(time_ms=time_ms)], offset, topic=f"one-{time_ms}")
        self.assertIn(last._replace(time_ms=time_ms), self.stored(Kind.METRICS), str(order))
        writer.close()

    def _all_in_one_call(self, order: Sequence[Measurement], last: Measurement, *, time_ms: int) -> None:
        writer = self.database.writer()
        rows = [each._replace(time_ms=time_ms) for each in order]
        written = self.write(writer, Kind.METRICS, rows, topic=f"all-{time_ms}")
        self.assertEqual((1, 2), (written.stored, written.repeated + written.conflicting))
        self.assertIn(last._replace(time_ms=time_ms), self.stored(Kind.METRICS), str(order))
        writer.close()

    def test_a_repeated_key_in_one_call_is_stored_once_and_counted(self) -> None:
        same = [_version(1, 1.0), _version(1, 1.0)]
        self.assertEqual(Written(stored=1, repeated=1), self.write(self.writer, Kind.METRICS, same))
        other = [_version(1, 1.0), _version(2, 2.0), _version(1, 1.0), measurement(5)]
        self.assertEqual(Written(stored=1, conflicting=3), self.write(self.writer, Kind.METRICS, other, 2))

    def test_counts_add_up_and_the_greatest_row_is_kept_for_random_rows(self) -> None:
        chance = random.Random(4)
        greatest: dict[tuple[bytes, int], Measurement] = {}
        offset = stored = 0
        for _ in range(25):
            batch = [_random_measurement(chance) for _ in range(chance.randrange(1, 40))]
            written = self.write(self.writer, Kind.METRICS, batch, offset)
            self.assertEqual(len(batch), written.stored + written.repeated + written.conflicting)
            offset += len(batch)
            stored += written.stored
            for each in batch:
                key = (each.series.id, each.time_ms)
                greatest[key] = max(greatest.get(key, each), each, key=_rank)
        self.assertEqual(len(greatest), stored)
        expected = sorted(greatest.values(), key=lambda each: (each.time_ms, each.series.id))
        self.assertEqual(expected, self.stored(Kind.METRICS))

    def test_time_and_message_id_are_the_key_of_the_other_kinds(self) -> None:
        for kind in self.database.storage().kinds - {Kind.METRICS}:
            ids = [message_id(0), message_id(1)]
            self.assertEqual(
                Written(stored=2), self.write(self.writer, kind, [row(kind), row(kind)], topic=kind, ids=ids)
            )
            again = [row(kind), row(kind), row(kind, time_ms=NOW_MS + 1), row(kind)]
            ids = [message_id(1), message_id(2), message_id(2), message_id(2)]
            self.assertEqual(
                Written(stored=2, repeated=2), self.write(self.writer, kind, again, 2, topic=kind, ids=ids)
            )
            expected = [(message_id(n), NOW_MS) for n in range(3)] + [(message_id(2), NOW_MS + 1)]
            self.assertEqual(expected, [(each, stored.time_ms) for each, stored in self.stored(kind)])

    def test_the_first_row_of_an_id_is_kept_for_any_times_of_later_rows(self) -> None:
        first, second = self.database.writer(), self.database.writer()
        for kind in (Kind.LOGS, Kind.EVENTS):
            ids = [message_id(0), message_id(1)]
            given = [row(kind, 0), row(kind, 1)]
            self.assertEqual(Written(stored=2), self.write(first, kind, given, topic=kind, ids=ids, by_id=[True] * 2))
            next_day = [row(kind, n, time_ms=NOW_MS + _NIGHT_MS) for n in (1, 2, 2)]
            ids = [message_id(1), message_id(2), message_id(2)]
            written = self.write(second, kind, next_day, topic=f"{kind}-again", ids=ids, by_id=[True] * 3)
            self.assertEqual(Written(stored=1, repeated=2), written)
            expected = [(message_id(0), NOW_MS), (message_id(1), NOW_MS), (message_id(2), NOW_MS + _NIGHT_MS)]
            self.assertEqual(expected, [(each, stored.time_ms) for each, stored in self.stored(kind)])

    def test_rows_by_id_and_other_rows_in_one_call_keep_their_keys(self) -> None:
        given = [row(Kind.LOGS, n, time_ms=NOW_MS + n) for n in range(4)]
        ids = [message_id(0)] * 4
        by_id = [True, True, False, False]
        self.assertEqual(Written(stored=3, repeated=1), self.write(self.writer, Kind.LOGS, given, ids=ids, by_id=by_id))
        self.assertEqual([given[0], given[2], given[3]], [stored for _, stored in self.stored(Kind.LOGS)])

    def test_a_refused_call_reserves_no_ids(self) -> None:
        bad = [row(Kind.LOGS, 0), row(Kind.LOGS, 1, time_ms=1)]
        self.assertRaises(RowsRefused, self.write, self.writer, Kind.LOGS, bad, by_id=[True] * 2)
        later = [row(Kind.LOGS, 0, time_ms=NOW_MS + 1)]
        self.assertEqual(Written(stored=1), self.write(self.writer, Kind.LOGS, later, by_id=[True]))


def _random_measurement(chance: random.Random) -> Measurement:
    return measurement(
        series=make_series(host=f"host-{chance.randrange(4)}"),
        time_ms=NOW_MS + chance.randrange(15),
        value=float(chance.randrange(3)),
        value_meta=chance.choice([None, *_META]),
        version=chance.randrange(3),
    )


def _rank(each: Measurement) -> tuple[int, float, str]:
    return (each.version, each.value, each.value_meta or "")
