# SPDX-License-Identifier: Apache-2.0
"""Run the package's tempest plugin and the unmodified public monasca-tempest-plugin against the package's services.

Tempest and Keystone come from PyPI. The public plugin imports a part of monasca-common 3, so it has its own
environment, which is kept for the next run. Kafka is the development broker; the database is SQLite or PostgreSQL. All
servers run in a temporary folder on free ports, and end with this program. `suite.py` runs the tests, and `verdict.py`
evaluates the results.

Exit status: 0 if every test of the plugins has passed, except one that is known to fail; 1 if a test failed, was
skipped or did not run; 2 for a wrong argument; 3 if a server or the environment of a plugin is missing.
"""

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import tempest_stack

from monasca_common.devbroker import DevBrokerError
from monasca_common.quickstart.services import ServiceFailed
from monasca_common.tests.functional.services.environments import environment_of_old

_TOOLS = Path(__file__).parents[1]
_PLUGINS = {"own": "monasca_common.tests.tempest.", "public": "monasca_tempest_tests.tests."}
# Requires a state one second after the last post; the API promises five seconds, and 1.4 to 2.6 s were measured.
_EXCLUDED = r"monasca_tempest_tests\.tests\.api\.test_alarms\.TestAlarms\.test_verify_deterministic_alarm"
_NOT_RUN, _INTERRUPTED = 3, 130


def main() -> int:
    arguments = _arguments()
    try:
        with tempfile.TemporaryDirectory(prefix="monasca-common-tempest-") as temporary:
            return _run(arguments, (arguments.keep or Path(temporary)).absolute())
    except (DevBrokerError, ServiceFailed, subprocess.SubprocessError, TimeoutError) as error:
        print(f"tools/tempest_tests: {error}", file=sys.stderr)
        return _NOT_RUN
    except KeyboardInterrupt:
        return _INTERRUPTED


def _arguments() -> argparse.Namespace:
    description, _, more = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(
        description=description, epilog=more, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("plugins", nargs="*", metavar="PLUGIN", help="own or public (default: both plugins)")
    parser.add_argument(
        "--database",
        choices=tempest_stack.DATABASES,
        default=tempest_stack.DATABASES[0],
        help="the database of the persister and the API (default: %(default)s)",
    )
    parser.add_argument("--test", metavar="REGEX", default="", help="run only the tests whose ids match")
    parser.add_argument(
        "--results", type=Path, metavar="FOLDER", help="write the results to this folder, and do not evaluate them"
    )
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="create this folder, and keep logs and files in it")
    arguments = parser.parse_args()
    if unknown := {*arguments.plugins} - _PLUGINS.keys():
        parser.error(f"there is no plugin {', '.join(sorted(unknown))}: name {' or '.join(_PLUGINS)}")
    if arguments.keep and arguments.keep.exists():
        parser.error(f"{arguments.keep} exists: name a new folder for --keep")
    return arguments


def _run(arguments: argparse.Namespace, folder: Path) -> int:
    plugins = {name: tempest_of(name) for name in arguments.plugins or _PLUGINS}
    results = (arguments.results or folder).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    # The public plugin looks for alarms before any window is evaluated. A smaller delay shortens a run of our plugin.
    delay, limit = (5, 600) if arguments.plugins == ["own"] else (30, 1800)
    with tempest_stack.running(arguments.database, folder, delay_seconds=delay) as configuration:
        (folder / "tempest.conf").write_text(configuration)
        environ = {**os.environ, "TEMPEST_CONFIG_DIR": str(folder), "TEMPEST_CONFIG": "tempest.conf"}
        for name, (python, tests, top) in plugins.items():
            regex = f"^(?!{_EXCLUDED})(?=.*({arguments.test})){re.escape(_PLUGINS[name])}"
            command = [sys.executable, str(_TOOLS / "suite.py"), str(tests), str(results), f"tempest-{name}"]
            command += ["--python", str(python), "--top-dir", str(top), "--test", regex]
            command += ["--concurrency", "2", "--limit", str(limit)]
            # Not in the checkout, because the public plugin must not import the package from there.
            process = subprocess.Popen(command, cwd=folder, env=environ)
            try:
                process.wait()
            finally:
                process.terminate()
                process.wait()
    if arguments.results:
        return 0
    verdict = [sys.executable, str(_TOOLS / "verdict.py"), str(results), *(f"tempest-{name}" for name in plugins)]
    return subprocess.run(verdict, env={**os.environ, "CI": "true"}, check=False).returncode  # a skipped test fails


def tempest_of(plugin: str) -> tuple[Path, Path, Path]:
    """Return the interpreter that has tempest and this plugin, the folder in which tempest discovers the tests of
    plugins, and the folder that contains tempest.

    Raises `ServiceFailed` if tempest or Keystone is not installed, and `subprocess.SubprocessError` or `TimeoutError`
    if the environment of the public plugin cannot be created.
    """
    if missing := [name for name in ("tempest", "keystone", "gunicorn") if find_spec(name) is None]:
        raise ServiceFailed(f"no {', '.join(missing)}: pip install -c upper-constraints.txt -e '.[api,tempest]'")
    python = Path(sys.executable)
    if plugin == "public":
        tempest_stack.say("the environment of the public plugin (the first time takes a minute)")
        python = environment_of_old("monasca-tempest-plugin").python
    code = "import tempest.test_discover; print(tempest.test_discover.__path__[0])"
    found = Path(subprocess.run([python, "-c", code], stdout=subprocess.PIPE, text=True, check=True).stdout.strip())
    return python, found, found.parents[1]


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
