# SPDX-License-Identifier: Apache-2.0
"""Speed and memory beside peers, in one run on a real Kafka and PostgreSQL that this command starts and stops.

Prints a table. What is required and missed is printed as such.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.runner import environments, table
from benchmarks.runner.plan import SECTIONS
from benchmarks.runner.results import Results
from benchmarks.runner.session import Session
from monasca_common.devbroker import KafkaCluster
from monasca_common.devbroker.jars import kafka_version

_ROOT = Path(__file__).parent.parent
_DOCUMENTATION = _ROOT / "doc" / "source" / "contributor" / "benchmarks"
# Processes that start together share the partitions from the first, and do not stop for each other later.
_CONFIG = {"group.initial.rebalance.delay.ms": "1000"}
_NAMES = [section.name for section in SECTIONS]


def main() -> int:
    arguments = _parser().parse_args()
    results = Results.read(arguments.results) if arguments.results else _measure(arguments)
    print(table.text(results))
    if arguments.json:
        results.write(arguments.json)
    if arguments.plot:
        _draw(results, arguments.plot)
    if arguments.document:
        _document(results)
    missed = [verdict for verdict in results.verdicts() if not verdict.met]
    return 1 if results.failures or (arguments.check and missed) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer messages and repeats: 3 minutes instead of 10")
    parser.add_argument("--only", nargs="+", choices=_NAMES, metavar="SECTION", help=f"of {', '.join(_NAMES)}")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every run there")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw there (.svg or .png)")
    parser.add_argument("--document", action="store_true", help="put what was measured into the documentation")
    parser.add_argument("--from", dest="results", type=Path, metavar="FILE", help="measure nothing, take this JSON")
    parser.add_argument("--check", action="store_true", help="exit with 1 if something required is missed")
    return parser


def _measure(arguments: argparse.Namespace) -> Results:
    results = Results({"cores": str(os.cpu_count()), "Python": platform.python_version(), "Kafka": kafka_version()})
    sections = [section for section in SECTIONS if not arguments.only or section.name in arguments.only]
    for name in {case.environment for section in sections for case in section.cases if case.environment}:
        environments.python(name)
    with contextlib.ExitStack() as started:
        needs_kafka = not all(section.stores and not section.reads for section in sections)
        cluster = started.enter_context(KafkaCluster(config=_CONFIG)) if needs_kafka else None
        Session(cluster, results, quick=arguments.quick).run(sections)
    return results


def _draw(results: Results, path: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "results.json")
        results.write(source)
        command = [environments.python("plot"), "-m", "benchmarks.runner.plot", source, path.absolute()]
        subprocess.run(command, cwd=_ROOT, check=True)


def _document(results: Results) -> None:
    if results.failures:
        sys.exit(f"not documented, for a case has no figures: {', '.join(results.failures)}")
    _DOCUMENTATION.mkdir(exist_ok=True)
    stored = _DOCUMENTATION / "results.json"
    if stored.exists():
        results = Results.read(stored).updated(results)
    (_DOCUMENTATION / "results.inc").write_text(table.restructured_text(results))
    results.write(stored)
    _draw(results, _DOCUMENTATION / "plot.svg")


if __name__ == "__main__":
    sys.exit(main())
