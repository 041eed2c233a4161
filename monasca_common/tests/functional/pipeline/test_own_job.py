# SPDX-License-Identifier: Apache-2.0
"""Spark jobs of other packages: ``examples/own_spark_job.py`` with the package that it needs."""

import json
import math
import sys
import tempfile
import tomllib
import zipfile
from pathlib import Path

import fixtures
from oslo_config import cfg
from pyspark.errors import PythonException
from pyspark.sql import functions
from stevedore import ExtensionManager

from monasca_common import pipeline
from monasca_common.pipeline import components, dataframes
from monasca_common.pipeline.aggregate.output import output
from monasca_common.pipeline.jobs.job import JOBS, JobRequest, JobWatcher, load_job
from monasca_common.tests.functional.pipeline.pipeline_case import (
    CPU_PRE_ROWS,
    CPU_ROWS,
    NOON_MS,
    SharedSpark,
    cpu,
    expected,
    newest,
)
from monasca_common.tests.unit.pipeline.pipeline_case import (
    PUBLISHER,
    PipelineCase,
    aggregates,
    envelope,
    partials_of,
    specifications,
)

EXAMPLES = Path(__file__).parents[4] / "examples"


def zipped(package):
    """Return the package of an example, with its entry points, as an archive for ``--py-files``."""
    project = tomllib.loads((EXAMPLES / package / "pyproject.toml").read_text())["project"]
    path = Path(tempfile.mkdtemp()) / f"{package}.zip"
    info = f"{package}-{project['version']}.dist-info"
    lines = []
    for namespace, names in project["entry-points"].items():
        lines += [f"[{namespace}]", *(f"{name} = {target}" for name, target in names.items())]
    with zipfile.ZipFile(path, "w") as file:
        for module in (EXAMPLES / package).glob("*.py"):
            file.write(module, module.name)
        file.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: {project['version']}\n")
        file.writestr(f"{info}/entry_points.txt", "\n".join(lines))
    return path


def forget_what_is_installed():
    components.names.cache_clear()
    for namespace in (components.OPERATIONS, components.USAGES, components.SETTERS, JOBS):
        ExtensionManager.ENTRY_POINT_CACHE.pop(namespace, None)


class OwnJobTest(PipelineCase):
    TIMEOUT_SCALING_FACTOR = 2  # starting Spark takes minutes on a busy machine

    def setUp(self):
        super().setUp()
        self.spark = self.useFixture(SharedSpark()).session
        self.install_example()

    def install_example(self):
        """Install the package here and on the executors. It remains installed there, because a session keeps its
        files."""
        if not any(path.endswith("spread.zip") for path in sys.path):
            self.spark.sparkContext.addPyFile(str(zipped("spread")))
        forget_what_is_installed()

    def frame(self, messages):
        """Return a frame of ``messages`` (value, partition, offset)."""
        rows = [(bytearray(value), partition, offset) for value, partition, offset in messages]
        return self.spark.createDataFrame(rows, "value binary, partition int, offset long")

    def test_the_example_finds_its_operation_on_executors(self):
        self.useFixture(fixtures.MonkeyPatch("sys.path", [str(EXAMPLES), *sys.path]))
        import own_spark_job

        sent = [
            (envelope("http.latency_ms", NOON_MS + value, value, dimensions={"hostname": "a"}), 0, value)
            for value in range(100)
        ]
        table = self.spark.sql(
            f"SELECT 'http.latency_ms' AS name, timestamp_millis({NOON_MS} + id) AS timestamp, id AS value, "
            "map('hostname', 'a') AS dimensions FROM range(100, 200)"
        )
        table.createOrReplaceTempView("latencies")

        (row,) = own_spark_job.spreads(self.frame(sent), own_spark_job.from_columns(self.spark, "latencies")).collect()

        self.assertAlmostEqual(0.199, row.value)
        self.assertEqual(("http.latency_spread_s", {"host": "a"}), (row.name, row.dimensions))
        self.assertEqual("200", row.value_meta["record_count"])

    def test_rows_equal_those_of_the_job_aggregate_and_invalid_records_are_ignored(self):
        specs = specifications(CPU_PRE_ROWS, CPU_ROWS)
        sent = [(cpu(minute, minute / 7, host), minute % 2, minute) for minute in range(120) for host in ("a", "b")]
        broken = [(b"{", 0, 1000), (cpu(10**9, 1), 1, 1001)]
        first, second = self.frame(sent[:99] + broken), self.frame(sent[99:])

        partials = dataframes.merge(dataframes.partials(first, specs), dataframes.partials(second, specs))
        rows = dataframes.rows(partials, specs).collect()

        published = [
            json.loads(output(PUBLISHER, specs.transforms[metric_id], usage, period_ms, version_ms=1).value)
            for (metric_id, period_ms), found in aggregates(specs, partials_of(specs, sent)).items()
            for usage in found.usages
        ]
        self.assertEqual(expected(CPU_PRE_ROWS, CPU_ROWS, sent), newest(published))
        facts = ("name", "value", "dimensions", "value_meta")
        metrics = [each["metric"] for each in published]
        self.assertCountEqual(
            [(each["timestamp"] / 1000, *(each[name] for name in facts)) for each in metrics],
            [(row.timestamp.timestamp(), *(row[name] for name in facts)) for row in rows],
        )

    def test_a_job_of_another_package_runs_by_its_name(self):
        folder = Path(self.useFixture(fixtures.TempDir()).path)
        sent = [(cpu(minute, minute), 0, minute) for minute in range(3)]
        self.frame(sent).write.parquet(str(folder / "metrics"))
        for name, rows in (("pre.jsonl", CPU_PRE_ROWS), ("transform.jsonl", CPU_ROWS)):
            (folder / name).write_text("\n".join(map(json.dumps, rows)))
        conf = cfg.ConfigOpts()
        (folder / "job.conf").write_text(
            f"[pipeline_aggregate_files]\nsource = {folder}/metrics\ntarget = {folder}/rows\n"
            f"pre_transform_specs = {folder}/pre.jsonl\ntransform_specs = {folder}/transform.jsonl\n"
        )
        conf(["--config-file", str(folder / "job.conf")], project="test")

        progress = load_job("aggregate_files", conf).run(JobRequest(), JobWatcher())

        self.assertEqual(3, progress.done)
        rows = self.spark.read.parquet(str(folder / "rows")).collect()
        self.assertEqual({("cpu_sum", 3.0), ("cpu_host", 1.0)}, {(row.name, row.value) for row in rows})

    def test_spark_writes_and_reads_the_texts_of_nan_and_infinities(self):
        rows = [("cpu", 5000.0, value, {}) for value in (math.nan, math.inf, -math.inf, 1.5)]
        schema = "name string, timestamp double, value double, dimensions map<string, string>"
        frame = dataframes.envelopes(self.spark.createDataFrame(rows, schema))
        texts = frame.select(functions.col("value").cast("string")).collect()
        written = [json.loads(text)["metric"]["value"] for (text,) in texts]
        self.assertEqual(["NaN", "Infinity", "-Infinity", 1.5], written)
        read = functions.from_json(functions.col("value").cast("string"), "metric struct<value double>")
        values = [row[0] for row in frame.select(read["metric"]["value"]).collect()]
        self.assertEqual(["nan", "inf", "-inf", "1.5"], list(map(repr, values)))

    def test_partials_of_missing_specifications_are_refused(self):
        specs = specifications(CPU_PRE_ROWS, CPU_ROWS)
        partials = dataframes.partials(self.frame([(cpu(1, 1), 0, 0)]), specs)

        error = self.assertRaises(PythonException, dataframes.rows(partials, pipeline.load()).collect)

        self.assertIn("which is not among the specifications", str(error))
