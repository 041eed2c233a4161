# SPDX-License-Identifier: Apache-2.0
"""Run the contracts and the main job with other versions of Kafka, confluent-kafka and Python, and print a table.

A cell is one combination of versions. The cells are a base, each axis varied by itself, the oldest and the newest of
everything (``--list``). In each, the contract of the messaging layer runs on a real Kafka of that version, and the
job aggregate on Spark over the golden data. The table goes to standard output, progress to standard error.

Exit status: 0 when every cell passed (one of a Python that setup.cfg does not name may be missing, unless it is asked
for by name); 1 when a test failed; 2 for a wrong argument; 3 when none failed, but a cell did not run.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import matrix_environment
from kept_environments import EnvironmentUnavailable
from matrix_cells import Axes, Cell, axes, chosen, plan
from matrix_run import Counts, Outcome, Results, run_tests
from matrix_table import fragment, text

from monasca_common.devbroker import DevBrokerError
from monasca_common.devbroker.jars import JARS_VARIABLE, KAFKA_VERSION, VERSION_VARIABLE, kafka_jars

_CHECKOUT = Path(__file__).parent.parent
_FAILED, _MISUSED, _NOT_RUN, _INTERRUPTED = 1, 2, 3, 130

_CONTRACTS = "monasca_common.tests.functional.kafka.test_contract_kafka"
_JOB = "monasca_common.tests.functional.pipeline.test_pipeline_aggregate.GoldenTest"


def main() -> int:
    arguments = _parser().parse_args()
    found = _axes()
    pythons = matrix_environment.find_pythons((*found.pythons, found.tried_python))
    try:
        cells = chosen(plan(found, pythons), arguments.cells)
    except ValueError as error:
        print(f"matrix.py: {error}", file=sys.stderr)
        return _MISUSED
    if arguments.list:
        print(text([Outcome(cell) for cell in cells]))
        return 0
    try:
        outcomes = list(prepare(cells, pythons)) if arguments.prepare else _measure(cells, pythons, arguments)
    except KeyboardInterrupt:
        return _INTERRUPTED
    print(json.dumps([asdict(outcome) for outcome in outcomes], indent=2) if arguments.json else text(outcomes))
    if arguments.rst:
        arguments.rst.write_text(fragment(outcomes))
    return status(outcomes)


def status(outcomes: Sequence[Outcome]) -> int:
    """The exit status of these outcomes."""
    if any(outcome.failed for outcome in outcomes):
        return _FAILED
    return _NOT_RUN if any(outcome.reason and outcome.cell.required for outcome in outcomes) else 0


def _parser() -> argparse.ArgumentParser:
    description, _, more = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(
        description=description, epilog=more, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cells", nargs="*", metavar="CELL", help="the name of a cell to run (default: all of them)")
    parser.add_argument("--list", action="store_true", help="print the cells, and which cannot run and why; run none")
    parser.add_argument(
        "--prepare", action="store_true", help="only fetch and install what the cells need, which is then kept"
    )
    parser.add_argument(
        "--results",
        type=Path,
        metavar="FILE",
        help="keep the outcomes in this file, cell by cell; the cells that it has already are not run again",
    )
    parser.add_argument("--json", action="store_true", help="print JSON in place of the table")
    parser.add_argument("--rst", type=Path, metavar="FILE", help="write the table for the documentation as well")
    parser.add_argument(
        "--contracts",
        nargs="+",
        default=[],
        metavar="TEST",
        help=f"classes, or tests as Class.test, of {_CONTRACTS} (default: all of it)",
    )
    parser.add_argument("--no-job", action="store_true", help="leave the main job out")
    parser.add_argument(
        "--timeout",
        type=float,
        default=900.0,
        metavar="S",
        help="seconds after which the contracts, or the job, of a cell have failed; making an environment does not "
        "count (default: %(default)g)",
    )
    return parser


def _axes() -> Axes:
    setup_cfg, requirements, constraints = (
        (_CHECKOUT / name).read_text() for name in ("setup.cfg", "requirements.txt", "upper-constraints.txt")
    )
    return axes(setup_cfg, requirements, constraints, KAFKA_VERSION)


def _measure(cells: Sequence[Cell], pythons: Mapping[str, str], arguments: argparse.Namespace) -> list[Outcome]:
    results = Results(arguments.results)
    with tempfile.TemporaryDirectory(prefix="monasca-common-matrix-") as work:
        ours: Path | None = None
        for outcome in prepare([cell for cell in cells if not results.has(cell)], pythons):
            if not outcome.reason:
                ours = ours or matrix_environment.install_ours(_CHECKOUT, Path(work))
                outcome = _run_cell(outcome.cell, pythons, ours, arguments)
            results.keep(outcome)
    return [results.of(cell) for cell in cells]


def prepare(cells: Sequence[Cell], pythons: Mapping[str, str]) -> Iterator[Outcome]:
    """Fetch what each cell needs, before it runs. An outcome without a reason is that of a cell that can run."""
    for number, cell in enumerate(cells, start=1):
        versions = f"Kafka {cell.kafka}, confluent-kafka {cell.confluent_kafka}, Python {cell.python}"
        _say(f"[{number}/{len(cells)}] {cell.name}: {versions}")
        reason = cell.reason
        try:
            if not reason:
                kafka_jars(_environ(cell))
                _installed(cell, pythons)
        except (EnvironmentUnavailable, DevBrokerError) as error:
            reason = str(error)
        if reason:
            _say(f"  not run: {reason}")
        yield Outcome(cell, reason=reason)


def _installed(cell: Cell, pythons: Mapping[str, str]) -> tuple[str, Path]:
    """The interpreter of a cell, and the folder with its confluent-kafka; they are made if they are missing."""
    python = matrix_environment.base_python(pythons[cell.python], _CHECKOUT, _say)
    return python, matrix_environment.confluent_kafka(python, cell.confluent_kafka, _say)


def _run_cell(cell: Cell, pythons: Mapping[str, str], ours: Path, arguments: argparse.Namespace) -> Outcome:
    environ = _environ(cell)
    python, client = _installed(cell, pythons)
    environ["PYTHONPATH"] = os.pathsep.join((str(ours), str(client)))
    environ["PATH"] = os.pathsep.join((str(Path(python).parent), environ.get("PATH", os.defpath)))

    def run(name: str, *tests: str) -> Counts:
        counts = run_tests([python, "-m", "subunit.run", *tests], environ, ours, arguments.timeout, _say)
        _say(f"  {name}: {counts}")
        return counts

    contracts = run("contracts", *([f"{_CONTRACTS}.{name}" for name in arguments.contracts] or [_CONTRACTS]))
    return Outcome(cell, contracts, None if arguments.no_job else run("main job", _JOB))


def _environ(cell: Cell) -> dict[str, str]:
    """The environment of a cell's tests. Archived classes and given jars are those of another version of Kafka."""
    left_out = ("KAFKA_OPTS", JARS_VARIABLE, "PYSPARK_PYTHON")
    kept = {name: value for name, value in os.environ.items() if name not in left_out}
    captured = {f"OS_{name}_CAPTURE": "true" for name in ("LOG", "STDOUT", "STDERR")}
    return {**kept, VERSION_VARIABLE: cell.kafka, "OS_TEST_TIMEOUT": "300", "OS_DEBUG": "INFO", **captured}


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
