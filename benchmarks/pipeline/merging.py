# SPDX-License-Identifier: Apache-2.0
"""How fast PostgreSQL merges what executors have staged: the part of aggregating that does not scale out.

For each number of groups a batch of a row each is merged three times: when the groups are new, when they are known,
and as the next batch in the same window again. Staging, which executors share, is not measured.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.pool import NullPool

from benchmarks.databases import Databases
from benchmarks.runner.table import show_table
from monasca_common.pipeline.aggregate import usage_table

_GROUPS = (10_000, 100_000, 500_000)
_SPECIFICATIONS = 5
_JOB, _ATTEMPT = "benchmark", 1
_STAGE = f"""
INSERT INTO aggregate_staging (batch, attempt, staged, {", ".join(usage_table.STAGED)})
SELECT :batch, {_ATTEMPT}, 0, 'specification ' || number % {_SPECIFICATIONS}, 0, decode(md5(number::text), 'hex'),
       '["compute-' || number || '.example.org", "9f2d4c0a7b6e4d31a5c8e0f1b2a3c4d5"]', 20, '1234.5 0.25', 1, 99,
       1000 + :turn, 0, number + :turn, 5, 2000 + :turn, 0, number + :turn, 7
FROM generate_series(1, :groups) AS number
"""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pipeline.merging", description=__doc__)
    parser.add_argument("--rst", type=Path, metavar="FILE", help="write the table there as well")
    arguments = parser.parse_args()
    rows = []
    with Databases() as databases:
        for groups in _GROUPS:
            with databases.new("postgresql") as url:
                rates = [f"{groups / seconds:,.0f}" for seconds in _merges(url, groups)]
            rows.append([f"{groups:,}", *rates])
            print("  ".join(rows[-1]), file=sys.stderr, flush=True)
    show_table(["Groups in a batch", "New, rows/s", "Known, rows/s", "Once more, rows/s"], rows, arguments.rst)
    return 0


def _merges(url: str, groups: int) -> list[float]:
    """Seconds of each, its commit included."""
    engine = sa.create_engine(url, poolclass=NullPool)
    taken = []
    for turn in range(3):
        batch = f"batch {turn}"
        with engine.begin() as connection:
            connection.execute(sa.text(_STAGE), {"batch": batch, "turn": turn, "groups": groups})
        began = time.perf_counter()
        with engine.begin() as connection:
            usage_table.merge(connection, _JOB, batch, [_ATTEMPT])
        taken.append(time.perf_counter() - began)
        with engine.begin() as connection:
            usage_table.clear(connection, batch, 0)
    with engine.connect() as connection:
        counted = connection.execute(sa.text("SELECT count(*), sum(record_count) FROM aggregate_usage")).one()
    if tuple(counted) != (groups, groups * 60):
        raise RuntimeError(f"merged into {counted}, not {groups} groups of 60 records")
    return taken


if __name__ == "__main__":
    sys.exit(main())
