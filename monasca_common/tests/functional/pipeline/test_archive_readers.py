# SPDX-License-Identifier: Apache-2.0
"""Common readers of Parquet, without this library, in sessions with different time zones."""

import ast
import json
import re
import textwrap
import time
from datetime import UTC, datetime
from pathlib import Path

import duckdb
import fixtures
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyspark.sql import functions as sql

from monasca_common.kafka import failpoints
from monasca_common.kafka.failpoints import FailPointReached
from monasca_common.tests.functional.pipeline.archive_case import HOUR_MS, SIX_MS, ArchiveCase, metric
from monasca_common.tests.periodic import periodic

PAGE = Path(__file__).parents[4] / "doc" / "source" / "admin" / "archive.rst"
ZONES = ("America/New_York", "Asia/Kolkata")
HOURS = [6, 7, 8] * 4


def names_and_values(values):
    metrics = [json.loads(value)["metric"] for value in values]
    return [metric["name"] for metric in metrics], [metric["value"] for metric in metrics]


@periodic("ArchiveTest reads every file; this one reads them with other programs")
class ReadersTest(ArchiveCase):
    """Twelve records of three hours are archived; a batch of ten more is written and not committed."""

    def setUp(self):
        super().setUp()
        self.publish([metric(number) for number in range(12)])
        archiver = self.archiver()
        archiver.step()
        self.publish([metric(number, hours=1) for number in range(10)])
        with failpoints.armed("archive.after_write", "raise"):
            self.assertRaises(FailPointReached, archiver.step)
        self.assertNotEqual([], self.staged_files())
        self.addCleanup(time.tzset)

    def each_zone(self):
        for zone in ZONES:
            with fixtures.EnvironmentVariable("TZ", zone):
                time.tzset()
                yield zone

    def assert_found(self, found, reader):
        """``found``: (hour, event time in ms, name, value) of each record."""
        hours = [SIX_MS + (hour - 6) * HOUR_MS for hour in HOURS]
        expected = [
            (hour, start_ms + number * 1000, "cpu.percent", float(number))
            for number, (hour, start_ms) in enumerate(zip(HOURS, hours, strict=True))
        ]
        self.assertEqual(sorted(expected, key=repr), sorted(map(tuple, found), key=repr), reader)

    def test_spark_reads_the_archive(self):
        for zone in self.each_zone():
            session = self.spark.newSession()
            session.conf.set("spark.sql.session.timeZone", zone)
            frame = session.read.parquet(str(self.location))
            self.assertEqual("int", dict(frame.dtypes)["hour"])
            text = sql.col("value").cast("string")
            name = sql.get_json_object(text, "$.metric.name")
            number = sql.get_json_object(text, "$.metric.value").cast("double")
            columns = ("hour", sql.unix_millis("event_time"), name, number)
            self.assert_found(frame.select(*columns).collect(), f"Spark in {zone}")
            start = datetime.fromtimestamp(SIX_MS / 1000 + 3600, UTC)
            self.assertEqual(4, frame.where(sql.col("event_time").between(start, start.replace(minute=59))).count())

    # Rule 38
    def test_duckdb_reads_the_archive(self):
        for zone in self.each_zone():
            with duckdb.connect() as session:
                session.execute(f"SET TimeZone = '{zone}'")
                found = session.execute(
                    "SELECT hour, epoch_ms(event_time), decode(value) ->> '$.metric.name', "
                    "(decode(value) ->> '$.metric.value')::DOUBLE "
                    f"FROM read_parquet('{self.location}/**/*.parquet', hive_partitioning = true)"
                ).fetchall()
                self.assert_found(found, f"DuckDB in {zone}")

    def test_pandas_reads_the_archive(self):
        for zone in self.each_zone():
            frame = pd.read_parquet(self.location)
            times = frame["event_time"].astype("datetime64[ms, UTC]").astype("int64")
            columns = (frame["hour"].astype(int), times, *names_and_values(frame["value"]))
            self.assert_found(zip(*columns, strict=True), f"pandas in {zone}")

    def test_pyarrow_reads_the_archive(self):
        for zone in self.each_zone():
            dataset = ds.dataset(self.location, partitioning="hive")
            self.assertEqual(pa.int32(), dataset.schema.field("hour").type)
            for table in (dataset.to_table(), pq.read_table(self.location, partitioning="hive")):
                times = table.column("event_time").cast(pa.int64()).to_pylist()
                columns = names_and_values(table.column("value").to_pylist())
                hours = table.column("hour").cast(pa.int32()).to_pylist()
                self.assert_found(zip(hours, times, *columns, strict=True), f"pyarrow in {zone}")
            self.assertEqual(4, dataset.count_rows(filter=pc.field("hour") == 7))

    def test_the_statements_of_the_page_read_the_archive(self):
        [program] = re.findall(r"(?m)^\.\. code-block:: python\n\n((?:   .*\n|\n)+)", PAGE.read_text())
        program = (
            textwrap.dedent(program).replace("/var/archive", str(self.location)).replace("2026-01-31", "2026-01-01")
        )
        names = {"spark": self.spark, "duckdb": duckdb, "pyarrow": pa, "pandas": pd}
        spark, duck, arrow, panda = (eval(ast.unparse(each), names) for each in ast.parse(program).body)
        self.assertEqual([4, 4, 12, 4], [spark.count(), duck.fetchall()[0][1], arrow.count_rows(), len(panda)])
