# SPDX-License-Identifier: Apache-2.0
"""How publishing aggregates grows with the groups of a period: time, CPU and memory of the driver's Python.

Each run is a process of its own with a database and a topic of its own. A group has one row in the database and makes
one message.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.databases import Databases
from benchmarks.job import Job, run_case
from benchmarks.runner.table import show_table
from benchmarks.topics import Topics
from monasca_common.devbroker import KafkaCluster

_GROUPS = (10_000, 100_000, 1_000_000)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pipeline.publishing_growth", description=__doc__)
    parser.add_argument("--groups", type=int, nargs="+", default=list(_GROUPS))
    parser.add_argument("--rst", type=Path, metavar="FILE", help="write the table there as well")
    arguments = parser.parse_args()
    rows = []
    with KafkaCluster() as cluster, Databases() as databases:
        topics = Topics(cluster)
        for groups in arguments.groups:
            with topics.new() as topic, databases.new("postgresql") as url:
                figures = run_case("pipeline.publishing", Job(cluster.bootstrap_servers, topic, groups, database=url))
                assert topics.records(topic) == groups
            rows.append(
                [
                    f"{groups:,}",
                    f"{figures.seconds:.1f}",
                    f"{figures.rate:,.0f}",
                    f"{figures.cpu_us:.0f}",
                    f"{figures.resident_mb or 0:,.0f}",
                ]
            )
            print("  ".join(rows[-1]), file=sys.stderr, flush=True)
    show_table(
        ["Groups in a period", "Seconds", "Messages/s", "CPU us a message", "Peak memory, MB"], rows, arguments.rst
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
