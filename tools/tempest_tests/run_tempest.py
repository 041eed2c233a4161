# SPDX-License-Identifier: Apache-2.0
"""Run the package's tempest plugin and the unmodified public monasca-tempest-plugin against the package's services.

Tempest and Keystone come from PyPI. The public plugin has its own environment, which is kept for the next run. Kafka is
the development broker; the database is SQLite or PostgreSQL. All servers run in a temporary folder on free ports, and
end with this program. The classes in which a test fails run once more, one after the other; `verdict` evaluates the
results.

Exit status: 0 if every test of the plugins has passed, except the tests in excluded.txt; 1 if a test failed, was
skipped or did not run; 2 for a wrong argument; 3 if no test could be run.
"""

import argparse
import contextlib
import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import NoReturn

import tempest_stack
from tempest_environment import PACKAGES, EnvironmentUnavailable, tempest_python
from tempest_run import TempestRun
from verdict import Suite, judge

from monasca_common.devbroker import DevBrokerError
from monasca_common.quickstart.services import ServiceFailed

_FAILED, _NOT_RUN, _INTERRUPTED = 1, 3, 130


def main() -> int:
    arguments = _arguments()
    try:
        counts = judge(_suites(arguments), Counter())
    except (EnvironmentUnavailable, DevBrokerError, ServiceFailed) as error:
        print(f"tools/tempest_tests: {error}", file=sys.stderr)
        return _NOT_RUN
    except KeyboardInterrupt:
        return _INTERRUPTED
    print(f"{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped")
    return _FAILED if counts["failed"] or counts["skipped"] else 0


def _arguments() -> argparse.Namespace:
    description, _, more = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(
        prog="python tools/tempest_tests",
        description=description,
        epilog=more,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("plugins", nargs="*", metavar="PLUGIN", help=f"{' or '.join(PACKAGES)} (default: both plugins)")
    parser.add_argument(
        "--database",
        choices=tempest_stack.DATABASES,
        default=tempest_stack.DATABASES[0],
        help="the database of the persister and the API (default: %(default)s)",
    )
    parser.add_argument("--test", metavar="REGEX", default="", help="run only the tests whose ids match")
    parser.add_argument(
        "--concurrency", type=int, default=2, metavar="N", help="concurrent test classes (default: %(default)s)"
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=1800.0,
        metavar="S",
        help="time-out of the tests of a plugin, after which they have failed (default: %(default)g)",
    )
    parser.add_argument(
        "--delay",
        type=int,
        default=tempest_stack.DELAY_SECONDS,
        metavar="S",
        help="[pipeline_evaluate] delay_seconds; a smaller value shortens a run of the package's plugin, but the "
        "public plugin needs the default (%(default)s)",
    )
    parser.add_argument(
        "--stream",
        type=Path,
        metavar="FILE",
        help="run the tests of one plugin once, and write the results to this file as a subunit stream, and the ids of "
        "the tests that need a result to the file with this name and .ids",
    )
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="create this folder, and keep logs and files in it")
    arguments = parser.parse_args()
    if unknown := {*arguments.plugins} - PACKAGES.keys():
        parser.error(f"there is no plugin {', '.join(sorted(unknown))}: name {' or '.join(PACKAGES)}")
    if arguments.keep and arguments.keep.exists():
        parser.error(f"{arguments.keep} exists: name a new folder for --keep")
    if arguments.stream and len(arguments.plugins) != 1:
        parser.error("--stream contains the results of one plugin: name the plugin")
    return arguments


def _suites(arguments: argparse.Namespace) -> list[Suite]:
    """Yield the tests of each plugin with their results."""
    pythons = {name: tempest_python(name, say) for name in arguments.plugins or PACKAGES}
    suites = []
    with (
        _folder(arguments.keep) as folder,
        tempest_stack.running(arguments.database, folder, say, delay_seconds=arguments.delay) as configuration,
    ):
        for name, python in pythons.items():
            run = TempestRun(python, folder / name, configuration)
            ids = [test for test in run.listed(PACKAGES[name]) if re.search(arguments.test, test)]
            say(f"running {len(ids)} tests of the plugin {name}")
            if ids:
                suites.append(_run(run, ids, arguments))
    if not suites:
        raise ServiceFailed(f"no test matches {arguments.test!r}")
    return suites


def _run(run: TempestRun, ids: list[str], arguments: argparse.Namespace) -> Suite:
    if arguments.stream:
        arguments.stream.with_suffix(".ids").write_text("\n".join(ids))
    results = run.results(ids, concurrency=arguments.concurrency, timeout=arguments.timeout)
    suite = Suite("tempest", ids, results)
    if arguments.stream:
        shutil.copyfile(run.stream, arguments.stream)
    elif repeated := suite.repeated():
        say(f"second attempt of the classes in which a test failed: {len(repeated)} tests")
        suite = Suite("tempest", ids, results, run.results(repeated, concurrency=1, timeout=arguments.timeout))
    return suite


@contextlib.contextmanager
def _folder(kept: Path | None) -> Iterator[Path]:
    if kept is None:
        with tempfile.TemporaryDirectory(prefix="monasca-common-tempest-") as temporary:
            yield Path(temporary)
    else:
        kept.mkdir(parents=True)
        yield kept.absolute()


def interrupted(_signal: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
