# SPDX-License-Identifier: Apache-2.0
"""Run our tempest plugin, and the public monasca-tempest-plugin, unmodified, against our services; print a table.

Tempest and Keystone come from PyPI, the public plugin into an environment of its own that is kept for the next run.
Kafka is the development broker, the database SQLite or PostgreSQL; all of it runs in a temporary folder on free
ports, and ends with this program. SUITE is the name of a suite, or ``own`` or ``public`` for all suites of a plugin.
The table goes to standard output, progress to standard error.

A test that gives our services less time than they promise to need is listed as a race, with the time that was measured:
where it looked too early, alone too, it counts as raced, not as failed. One that is listed and passes is named below.

Exit status: 0 when every test of every suite that ran has passed or raced; 1 when one failed, was skipped or did not
run; 2 for a wrong argument; 3 when nothing could be run.
"""

import argparse
import contextlib
import json
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import FrameType
from typing import NoReturn

import tempest_environment
import tempest_stack
from kept_environments import EnvironmentUnavailable
from tempest_results import FAILED, PASSED, RACED, SuiteResult, TestResult, by_suite, write
from tempest_run import TempestRun
from tempest_suites import PACKAGES, SUITES, TOO_EARLY, Suite, chosen, race, suite_of
from tempest_table import fragment, text

from monasca_common.devbroker import DevBrokerError
from monasca_common.quickstart.services import ServiceFailed

_CHECKOUT = Path(__file__).parents[2]
_FAILED, _MISUSED, _NOT_RUN, _INTERRUPTED = 1, 2, 3, 130


def main() -> int:
    arguments = _parser().parse_args()
    try:
        suites = chosen(arguments.suites)
    except ValueError as error:
        print(f"tools/tempest_tests: {error}", file=sys.stderr)
        return _MISUSED
    if arguments.keep and arguments.keep.exists():
        print(f"tools/tempest_tests: {arguments.keep} exists: name a new folder for --keep", file=sys.stderr)
        return _MISUSED
    if arguments.list:
        for suite in SUITES:
            print(suite.name)
        return 0
    try:
        results = _measure(suites, arguments)
    except (EnvironmentUnavailable, DevBrokerError, ServiceFailed) as error:
        print(f"tools/tempest_tests: {error}", file=sys.stderr)
        return _NOT_RUN
    except KeyboardInterrupt:
        return _INTERRUPTED
    print(json.dumps([asdict(result) for result in results], indent=2) if arguments.json else text(results))
    if arguments.rst:
        arguments.rst.write_text(fragment(results, _versions(arguments.database)))
    return status(results)


def status(results: Sequence[SuiteResult]) -> int:
    """The exit status of these results."""
    ran = [result for result in results if result.ran]
    if not any(result.results for result in ran):
        return _NOT_RUN
    return 0 if all(result.whole for result in ran) else _FAILED


def _parser() -> argparse.ArgumentParser:
    description, _, more = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(
        prog="python tools/tempest_tests",
        description=description,
        epilog=more,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("suites", nargs="*", metavar="SUITE", help="a suite to run, own or public (default: all)")
    parser.add_argument("--list", action="store_true", help="print the suites, and run none")
    parser.add_argument(
        "--database",
        choices=tempest_stack.DATABASES,
        default=tempest_stack.DATABASES[0],
        help="what the persister writes to and the API reads (default: %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON in place of the table, with every test")
    parser.add_argument("--rst", type=Path, metavar="FILE", help="write the table for the documentation as well")
    parser.add_argument(
        "--test", metavar="REGEX", default="", help="only the tests whose ids have this; the table has no others"
    )
    parser.add_argument(
        "--concurrency",
        type=int,
        default=2,
        metavar="N",
        help="how many test classes run at once (default: %(default)s)",
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=1800.0,
        metavar="S",
        help="seconds after which the tests are ended, and those that did not end have failed (default: %(default)g)",
    )
    parser.add_argument(
        "--delay",
        type=int,
        default=tempest_stack.DELAY_SECONDS,
        metavar="S",
        help="[pipeline_evaluate] delay_seconds; less of it shortens a run, and the public suites need the default "
        "(default: %(default)s)",
    )
    parser.add_argument("--stream", type=Path, metavar="FILE", help="write the results as a stream of subunit as well")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="make this folder, and keep logs and files there")
    return parser


def _measure(suites: Sequence[Suite], arguments: argparse.Namespace) -> list[SuiteResult]:
    keystone = tempest_environment.keystone_python(_CHECKOUT, _say)
    plugins = [name for name in PACKAGES if any(suite.plugin == name for suite in suites)]
    pythons = {name: tempest_environment.tempest_python(name, _CHECKOUT, _say) for name in plugins}
    shipped: list[str] = []
    wanted: list[str] = []
    results: list[TestResult] = []
    with (
        _folder(arguments.keep) as folder,
        tempest_stack.running(
            keystone, arguments.database, folder, _say, delay_seconds=arguments.delay
        ) as configuration,
    ):
        for name, python in pythons.items():
            run = TempestRun(python, folder / name, configuration, _say, package=PACKAGES[name])
            tests = [test for test in run.shipped() if re.search(arguments.test, test)]
            shipped += tests
            here = [test for test in tests if suite_of(test) in suites]
            wanted += here
            if here:
                _say(f"the {name} plugin")
                results += _run(run, here, arguments)
    if not wanted:
        raise ServiceFailed(f"no test of {', '.join(suite.name for suite in suites)} has {arguments.test!r}")
    if arguments.stream:
        with arguments.stream.open("wb") as stream:
            write(stream, wanted, results)
    return by_suite(shipped, suites, results)


def _run(run: TempestRun, tests: Sequence[str], arguments: argparse.Namespace) -> list[TestResult]:
    """Run the tests; those that lost a race which is listed run once more, one by one, when nothing else runs."""
    results = run.run(tests, concurrency=arguments.concurrency, timeout=arguments.timeout)
    lost = [result.test for result in results if result.status == FAILED and race(result.test)]
    if lost:
        _say(f"once more, alone: {len(lost)} tests")
    again = {result.test: result for result in run.run(lost, concurrency=1, timeout=arguments.timeout)} if lost else {}
    return [_raced(result, again.get(result.test)) for result in results]


def _raced(result: TestResult, again: TestResult | None) -> TestResult:
    """What counts of a test that is listed as a race, and of any other as it is."""
    why = race(result.test)
    if why is None or result.status not in (PASSED, FAILED):
        return result
    if result.status == PASSED:
        return replace(result, detail=f"passed, and is listed as a race: {why}")
    if again is not None and again.status == PASSED:
        return replace(again, detail=f"passed when it ran alone: {why}")
    ended = [each.detail for each in (result, again) if each is not None]
    return replace(result, status=RACED, detail=why) if all(map(TOO_EARLY.search, ended)) else result


@contextlib.contextmanager
def _folder(kept: Path | None) -> Iterator[Path]:
    if kept is None:
        with tempfile.TemporaryDirectory(prefix="monasca-common-tempest-") as temporary:
            yield Path(temporary)
    else:
        kept.mkdir(parents=True)
        yield kept.absolute()


def _versions(database: str) -> str:
    files = (_CHECKOUT / "upper-constraints.txt", _CHECKOUT / "tools" / "tempest_tests" / "constraints.txt")
    lines = [line for file in files for line in file.read_text().splitlines()]
    pins = dict(line.split("==") for line in lines if "==" in line)
    return f"monasca-tempest-plugin {pins['monasca-tempest-plugin']}, tempest {pins['tempest']}, {database}"


def interrupted(_signal: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
