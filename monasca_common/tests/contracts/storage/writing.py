# SPDX-License-Identifier: Apache-2.0
"""The contract of `Writer.write` for every driver: it stores each row once."""

import math

from monasca_common.storage.base import Capability, Kind, Rows, Written
from monasca_common.storage.errors import NotSupported
from monasca_common.storage.reader import PageOf, SeriesFilter
from monasca_common.tests.contracts.storage.database import NOW_MS, needs
from monasca_common.tests.contracts.storage.scenario import Scenario, claim, make_series, measurement, message_id, row

_FOREIGN = "Größe 温度 🌡 \u200b \\ ' \" % $1 \t"


class WriteContract(Scenario):
    def test_rows_of_every_kind_are_stored_unchanged(self) -> None:
        for kind in self.database.storage().kinds:
            given = [row(kind, number, time_ms=NOW_MS + number) for number in range(3)]
            self.write(self.writer, kind, given, topic=kind)
            if kind is Kind.METRICS:
                self.assertEqual(given, self.stored(kind))
            else:
                self.assertEqual([(message_id(n), given[n]) for n in range(3)], self.stored(kind))

    def test_text_in_any_language_is_stored_unchanged(self) -> None:
        for kind in self.database.storage().kinds:
            self.write(self.writer, kind, [row(kind, text=_FOREIGN)], topic=kind)
            [stored] = self.stored(kind)
            self.assertEqual(row(kind, text=_FOREIGN), stored if kind is Kind.METRICS else stored[1])

    def test_tenant_region_name_and_dimensions_identify_a_series(self) -> None:
        series = [
            make_series("größe", "tenant-1", ключ="値"),
            make_series("größe", "tenant-2", ключ="値"),
            make_series("größe", "tenant-2"),
            make_series("other", "tenant-2"),
        ]
        given = [measurement(value=float(n), series=each) for n, each in enumerate(series)]
        self.write(self.database.writer(), Kind.METRICS, given)
        self.assertEqual(sorted(given, key=lambda each: each.series.id), self.stored(Kind.METRICS))

    def test_values_keep_their_precision(self) -> None:
        values = [0.1, -1.5e-300, 1.7976931348623157e308, 5e-324, 123456789.123456789, -0.1 - 0.2]
        given = [measurement(n, value=value, time_ms=NOW_MS + n) for n, value in enumerate(values)]
        self.write(self.database.writer(), Kind.METRICS, given)
        self.assertEqual(values, [each.value for each in self.stored(Kind.METRICS)])

    def test_nan_and_infinities_are_stored(self) -> None:
        values = [math.nan, math.inf, -math.inf, 1.0]
        given = [measurement(n, value=value, time_ms=NOW_MS + n) for n, value in enumerate(values)]
        self.write(self.database.writer(), Kind.METRICS, given)
        self.assertEqual(list(map(repr, values)), [repr(each.value) for each in self.stored(Kind.METRICS)])

    def test_a_repeated_range_is_stored_once(self) -> None:
        for kind in self.database.storage().kinds:
            for _ in range(2):
                self.write(self.writer, kind, [row(kind, number) for number in range(5)], topic=kind)
            self.assertEqual(5, len(self.stored(kind)), kind)

    def test_one_call_stores_20000_rows(self) -> None:
        series = [make_series(host=f"host-{n}") for n in range(1000)]
        given = [measurement(series=series[n % 1000], time_ms=NOW_MS + n, value=float(n)) for n in range(20_000)]
        written = self.write(self.database.writer(), Kind.METRICS, given)
        self.assertEqual(Written(stored=20_000), written)
        self.assertEqual(given, self.stored(Kind.METRICS))

    def test_a_call_without_rows_stores_none(self) -> None:
        for kind in self.database.storage().kinds:
            self.assertEqual(Written(), self.writer.write(claim(0, 5, topic=kind), Rows(kind, [], [])))
            self.assertEqual([], self.stored(kind))

    def test_an_undeclared_kind_is_refused(self) -> None:
        storage = self.database.storage()
        for kind in set(Kind) - storage.kinds:
            self.assertRaises(NotSupported, self.write, self.writer, kind, [row(kind)], topic=kind)

    def test_columns_of_unequal_length_raise_value_error(self) -> None:
        kinds = self.database.storage().kinds
        for rows in (
            Rows(Kind.METRICS, [measurement()], [0, 1]),
            *(Rows(kind, [row(kind)], [0]) for kind in kinds - {Kind.METRICS}),
            *(Rows(kind, [row(kind)], [0], [message_id(0)], [True] * 2) for kind in kinds - {Kind.METRICS}),
            Rows(Kind.METRICS, [measurement()], [0], (), [True]),
        ):
            self.assertRaises(ValueError, self.writer.write, claim(0, 2), rows)

    def test_rows_outside_their_claim_raise_value_error(self) -> None:
        for start, end in ((1, 2), (0, 1), (3, 0)):
            rows = Rows(Kind.METRICS, [measurement(0), measurement(1)], [0, 1])
            self.assertRaises(ValueError, self.writer.write, claim(start, end), rows)

    @needs(Capability.READS)
    def test_a_reader_sees_rows_while_the_writer_is_open(self) -> None:
        writer = self.database.writer()
        reader = self.database.storage().open_reader()
        self.addCleanup(reader.close)
        self.write(writer, Kind.METRICS, [measurement()])
        self.assertEqual([measurement().series], reader.series(SeriesFilter("tenant"), PageOf(10)))

    def test_undeclared_reads_are_refused(self) -> None:
        storage = self.database.storage()
        if Capability.READS not in storage.capabilities:
            self.assertRaises(NotSupported, storage.open_reader)

    def test_a_claim_that_ends_before_its_start_raises_value_error(self) -> None:
        self.assertRaises(ValueError, self.database.writer().accounted, claim(5, 4))

    def test_series_and_time_are_the_key_of_a_measurement(self) -> None:
        given = [measurement(0), measurement(1), measurement(0, time_ms=NOW_MS + 1)]
        self.write(self.writer, Kind.METRICS, given)
        self.write(self.writer, Kind.METRICS, given, len(given))
        self.assertEqual(3, len(self.stored(Kind.METRICS)))
