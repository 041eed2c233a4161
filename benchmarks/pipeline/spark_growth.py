# SPDX-License-Identifier: Apache-2.0
"""How aggregating on Spark grows: with records, cores and specifications, one of them at a time.

Each run is a process of its own with a database of its own: a tenth of the records to warm up, then as many as its row
says in one batch, staged, merged and published. Memory is that of the driver, its JVM and its Python workers together.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.databases import Databases
from benchmarks.job import Figures, Job, run_case
from benchmarks.runner.table import show_table
from benchmarks.topics import Topics
from monasca_common.devbroker import KafkaCluster

_SIZES = (500_000, 1_000_000, 2_000_000, 4_000_000)
_HEAD = ["Records", "Cores", "Specifications", "Records/s", "CPU us a record", "Peak memory, MB"]


@dataclass(frozen=True, slots=True)
class Point:
    records: int
    cores: int
    specifications: int


def points(size: int) -> Iterator[Point]:
    """``size``: what records are when something else varies."""
    for records in _SIZES:
        if records <= size * 2:
            yield Point(records, 2, 5)
    yield Point(size, 1, 5)
    yield Point(size, 2, 1)
    yield Point(size, 2, 26)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pipeline.spark_growth", description=__doc__)
    parser.add_argument("--size", type=int, choices=_SIZES, default=2_000_000, help="records, where they do not vary")
    parser.add_argument("--rst", type=Path, metavar="FILE", help="write the table there as well")
    arguments = parser.parse_args()
    wanted = list(points(arguments.size))
    backlog = max(point.records for point in wanted) * 11 // 10
    lines = []
    with KafkaCluster() as cluster, Databases() as databases:
        topics = Topics(cluster)
        with topics.new() as topic, topics.new(f"{topic}.dlq"):
            print(f"writing {backlog:,} records ...", file=sys.stderr, flush=True)
            run_case("storage.fill_metrics", Job(cluster.bootstrap_servers, topic, backlog))
            for number, point in enumerate(wanted):
                with databases.new("postgresql") as url:
                    job = Job(
                        cluster.bootstrap_servers,
                        topic,
                        point.records,
                        group=f"growth-{number}",
                        threads=point.cores,
                        case=f"aggregate-{point.specifications}",
                        database=url,
                    )
                    lines.append(_row(point, run_case("pipeline.aggregating", job)))
                    print("  ".join(lines[-1]), file=sys.stderr, flush=True)
    show_table(_HEAD, lines, arguments.rst)
    return 0


def _row(point: Point, figures: Figures) -> list[str]:
    return [
        f"{point.records:,}",
        str(point.cores),
        str(point.specifications),
        f"{figures.rate:,.0f}",
        f"{figures.cpu_us:.1f}",
        f"{figures.resident_mb or 0:,.0f}",
    ]


if __name__ == "__main__":
    sys.exit(main())
