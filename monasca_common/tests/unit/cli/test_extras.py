# SPDX-License-Identifier: Apache-2.0
"""Every command reports a missing package with the extra that installs it, and the library runs without commands."""

import contextlib
import importlib.metadata
import io
import json
import shlex
import subprocess
import sys
from pathlib import Path
from unittest import mock

import fixtures
from oslotest import base
from packaging.utils import canonicalize_name

from monasca_common.cli import script
from monasca_common.cli.main import COMMANDS
from monasca_common.kafka.extras import remedy
from monasca_common.tests.unit.test_options import BLOCKED

_CHECKOUT = Path(__file__).parents[4]
_CONFIGURATION = """\
[kafka]
bootstrap_servers = 127.0.0.1:1
[storage]
driver = {driver}
[database]
connection = {driver}://nowhere/x
[api]
auth_strategy = noauth
"""
_ANY = "monasca-common[api] or monasca-common[notification] or monasca-common[persister] or monasca-common[spark]"
# The arguments of each command, and the extra that it names.
_CONFIGURED = {
    "api": ((), "monasca-common[api]"),
    "dashboard": ((), "monasca-common[dashboard]"),
    "db prune": ((), _ANY),
    "db status": ((), _ANY),
    "db upgrade": ((), _ANY),
    "init": ((), _ANY),
    "mirror run": ((), "monasca-common[mirror]"),
    "notification": ((), "monasca-common[notification]"),
    "notification list": ((), "monasca-common[notification]"),
    "notification resend": (("x",), "monasca-common[notification]"),
    "notification show": (("x",), "monasca-common[notification]"),
    "notification rotate-keys": ((), "monasca-common[notification]"),
    "offsets reset": (("--group", "g", "--to-latest"), _ANY),
    "offsets show": (("--group", "g"), _ANY),
    "lag serve": ((), "monasca-common[monitoring]"),
    "audit serve": ((), "monasca-common[monitoring]"),
    "persister": ((), "monasca-common[persister]"),
    "schema check": (("s", "f.avsc"), "monasca-common[avro]"),
    "schema list": ((), "monasca-common[avro]"),
    "schema register": (("s", "f.avsc"), "monasca-common[avro]"),
    "schema show": (("s",), "monasca-common[avro]"),
    "sink check": ((), "monasca-common[persister]"),
    "sink plan": ((), "monasca-common[persister]"),
    "sink run": ((), "monasca-common[persister]"),
    "pipeline run": (("aggregate",), "monasca-common[spark]"),
    "pipeline status": ((), "monasca-common[spark]"),
}
_UNCONFIGURED = {
    "notification test": (("--type", "webhook", "--address", "http://x/"), "monasca-common[notification]"),
    "pipeline list": ((), "monasca-common[spark]"),
    "quickstart": (("--once",), "monasca-common[quickstart]"),
}
_NEED_NONE = {
    "audit count",
    "audit show",
    "broker start",
    "config check",
    "dashboard password",
    "dlq list",
    "dlq purge",
    "dlq replay",
    "dlq show",
    "durability check",
    "jars fetch",
    "lag list",
    "lag show",
    "mirror verify",
    "pipeline specifications check",
    "topic create",
    "topic list",
    "topic sample",
    "topic show",
    "topic tail",
}

_RUNNING = """
import contextlib, io, json, sys
blocked, commands = json.loads(sys.argv[1])
sys.modules.update(dict.fromkeys(blocked))
from monasca_common.cli.main import main
results = {}
for name, arguments in commands.items():
    with contextlib.redirect_stderr(io.StringIO()) as stderr:
        status = main(arguments)
    results[name] = status, stderr.getvalue()
print(json.dumps(results))
"""


class CommandsTest(base.BaseTestCase):
    def run_without(self, blocked, driver, configured, unconfigured=()):
        """Return the exit status and standard error of each command if these modules are not installed."""
        path = Path(self.useFixture(fixtures.TempDir()).path, "service.conf")
        path.write_text(_CONFIGURATION.format(driver=driver))
        file = ("--config-file", str(path))
        commands = {name: [*name.split(), *_CONFIGURED[name][0], *file] for name in configured}
        commands |= {name: [*name.split(), *_UNCONFIGURED[name][0]] for name in unconfigured}
        done = subprocess.run(
            [sys.executable, "-c", _RUNNING, json.dumps([blocked, commands])], capture_output=True, text=True
        )
        self.assertEqual(0, done.returncode, done.stderr)
        self.assertEqual("", done.stderr)
        return json.loads(done.stdout.splitlines()[-1])

    def test_each_command_names_its_missing_extra(self):
        needing = _CONFIGURED | _UNCONFIGURED
        self.assertEqual(
            {each.name.replace("_", " ") for each in importlib.metadata.entry_points(group=COMMANDS)},
            needing.keys() | _NEED_NONE,
        )
        results = self.run_without(BLOCKED, "sqlite", _CONFIGURED, _UNCONFIGURED)
        for name, (status, stderr) in results.items():
            self.assertEqual(1, status, name)
            [line] = stderr.splitlines()
            self.assertTrue(line.startswith(f"monasca-common {name}: "), line)
            self.assertIn(f" is not installed: install {needing[name][1]}", line)

    def test_the_database_of_the_configuration_has_its_extra(self):
        results = self.run_without(["psycopg"], "postgresql", ["api", "db status", "pipeline status", "persister"])
        for name, (status, stderr) in results.items():
            self.assertEqual(1, status, name)
            self.assertIn("psycopg is not installed: install monasca-common[postgresql]", stderr.splitlines()[-1])


_CORE = """
import importlib.abc, json, sys
installed, modules = json.loads(sys.argv[1])

class NotInstalled(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in {"monasca_common", *installed, *sys.stdlib_module_names}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, NotInstalled())
for module in modules:
    importlib.import_module(module)
from monasca_common.cli import script
sys.exit(script.main())
"""
_MODULES_OF_THE_CORE = (
    *("", ".aio", ".client_factory", ".clock", ".config", ".errors", ".extras", ".failpoints", ".message", ".settings"),
    *(".plugins", ".serialization", ".serialization.json", ".serialization.msgspec", ".transport.memory"),
)


class CoreTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.useFixture(fixtures.MonkeyPatch("sys.path", [str(_CHECKOUT / "tools"), *sys.path]))
        import licences

        self.core = licences.needed()

    def test_packages_that_only_commands_need_are_in_the_extra_cli(self):
        commands = {"autopage", "cliff", "cmd2", "markdown-it-py", "mdurl", "prettytable", "prompt-toolkit"}
        commands |= {"pygments", "pyperclip", "rich", "rich-argparse", "wcwidth"}
        self.assertEqual(set(), commands & self.core.keys())
        self.assertLessEqual(len(self.core), 30)

    def test_the_library_runs_on_the_core_and_the_script_names_the_command_that_installs_the_rest(self):
        top_levels = importlib.metadata.packages_distributions()
        installed = [
            name for name, owners in top_levels.items() if self.core.keys() & set(map(canonicalize_name, owners))
        ]
        modules = [f"monasca_common.kafka{name}" for name in _MODULES_OF_THE_CORE]
        done = subprocess.run(
            [sys.executable, "-c", _CORE, json.dumps([installed, modules])], capture_output=True, text=True
        )
        install = (
            f"{sys.executable} -m pip install 'monasca-common[cli]=={importlib.metadata.version('monasca-common')}'"
        )
        results = f"monasca-common: cliff is not installed: install the commands with {install}"
        self.assertEqual((1, results + "\n", ""), (done.returncode, done.stderr, done.stdout))

    def test_the_printed_command_is_quoted_for_a_shell(self):
        python = "/opt/my services/bin/python"
        errors = io.StringIO()
        with (
            mock.patch.dict(sys.modules, {"monasca_common.cli.main": None}),
            mock.patch("sys.executable", python),
            contextlib.redirect_stderr(errors),
        ):
            self.assertEqual(1, script.main())

        command = shlex.split(errors.getvalue().partition(" with ")[2])
        self.assertEqual([python, "-m", "pip", "install"], command[:4])


class FormatsTest(base.BaseTestCase):
    def test_a_format_whose_extra_is_missing_names_it(self):
        program = """
import sys
for module in ("fastavro", "jsonschema", "google.protobuf", "httpx2", "authlib"):
    sys.modules[module] = None
from monasca_common import kafka
for name in ("avro", "json-schema", "protobuf"):
    try:
        kafka.load_serializer(name)
    except kafka.ConfigurationError as error:
        print(error)
"""
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        self.assertEqual("", done.stderr)
        for name, line in zip(("avro", "json-schema", "protobuf"), done.stdout.splitlines(), strict=True):
            self.assertIn(f"is not installed: install monasca-common[{name}]", line)


class RemedyTest(base.BaseTestCase):
    def not_found(self, name):
        return ModuleNotFoundError(f"No module named {name!r}", name=name)

    def test_the_extra_of_the_caller_is_named(self):
        missing = self.not_found("sqlalchemy.orm")
        self.assertEqual("sqlalchemy is not installed: install monasca-common[spark]", remedy(missing, "spark"))
        self.assertEqual(f"sqlalchemy is not installed: install {_ANY}", remedy(missing))

    def test_packages_that_only_commands_import_have_their_extra(self):
        self.assertEqual("rich is not installed: install monasca-common[cli]", remedy(self.not_found("rich"), "spark"))

    def test_a_module_is_found_under_its_distributions_name(self):
        self.assertIn("monasca-common[api]", remedy(self.not_found("oslo_policy")))
        self.assertIn("monasca-common[persister]", remedy(self.not_found("prometheus_client"), "persister"))

    def test_an_extra_installs_its_own_requirements(self):
        self.assertEqual("webob is not installed: install monasca-common[api]", remedy(self.not_found("webob"), "api"))

    def test_an_extra_for_developers_is_named_only_if_no_other_installs_the_package(self):
        self.assertEqual(
            "psutil is not installed: install monasca-common[quickstart]", remedy(self.not_found("psutil"))
        )
        self.assertEqual(
            "hypothesis is not installed: install monasca-common[test]", remedy(self.not_found("hypothesis"))
        )

    def test_an_error_of_a_package_of_no_extra_is_unchanged(self):
        for error in (ImportError("cannot import name 'x'"), self.not_found("monasca_common.nowhere")):
            self.assertEqual(str(error), remedy(error, "api"))
        self.assertEqual("nowhere is not installed: install it", remedy(self.not_found("nowhere")))
