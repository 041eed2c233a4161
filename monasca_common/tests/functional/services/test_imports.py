# SPDX-License-Identifier: Apache-2.0
"""Everything that a published service imports from monasca-common exists.

The imports are read from the installed packages. The tests of these packages are excluded, because services do not run
them.
"""

import ast
import json
import subprocess

from oslotest import base

from monasca_common.tests.functional.services import environments
from monasca_common.tests.periodic import periodic

_SECONDS = 120

# Runs in the service's environment, and prints the errors by imported name.
_RESOLVE = """
import importlib, importlib.metadata, json, sys

def problem(name):
    module, _, attribute = name.partition(":")
    try:
        found = importlib.import_module(module)
        if attribute and not hasattr(found, attribute):
            importlib.import_module(f"{module}.{attribute}")
    except Exception as error:
        return f"{type(error).__name__}: {error}"

problems = {name: problem(name) for name in json.loads(sys.argv[1])}
print(json.dumps({name: text for name, text in problems.items() if text}))
"""


def imported_names(source):
    """Return the names imported from monasca_common, as ``module`` or ``module:name``. Includes imports within
    functions and ``try``, and attributes of imported modules, such as ``client.KafkaUnavailableError``."""
    tree = ast.parse(source)
    found, modules = set(), {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and is_ours(node.module):
            found |= {f"{node.module}:{alias.name}" for alias in node.names}
            modules |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if is_ours(alias.name)}
            modules |= {alias.asname: alias.name for alias in node.names if is_ours(alias.name) and alias.asname}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            found.add(f"{modules[node.value.id]}:{node.attr}")
    return found


def is_ours(module):
    return module is not None and module.partition(".")[0] == "monasca_common"


_SAMPLE = """
from monasca_common.kafka_lib import client as kafka
try:
    import monasca_common.kafka_lib.nowhere as nowhere
except ImportError:
    from monasca_common.simport import simport, simport2
print(kafka.KafkaClient, kafka.KafkaServer, simport.load)
"""
_MISSING = {
    "monasca_common.kafka_lib.nowhere",
    "monasca_common.simport:simport2",
    "monasca_common.kafka_lib.client:KafkaServer",
}


@periodic("a published service; the normal run contains MonascaPersisterTest")
class ImportsTest(base.BaseTestCase):
    def problems(self, environment, names):
        done = subprocess.run(
            [environment.python, "-c", _RESOLVE, json.dumps(sorted(names))],
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            cwd="/",
        )
        self.assertEqual(0, done.returncode, done.stderr)
        return json.loads(done.stdout.splitlines()[-1])

    def assert_imports_resolve(self, service, *packages):
        environment = environments.environment(service)
        [installed] = (environment.below / "lib").glob("*/site-packages")
        paths = [path for package in packages for path in (installed / package).rglob("*.py")]
        names = set().union(*(imported_names(path.read_text()) for path in paths if "tests" not in path.parts))
        self.assertNotEqual(set(), names, f"no import is found in {len(paths)} files")
        self.assertEqual({}, self.problems(environment, names))

    def test_missing_imports_are_detected(self):
        found = imported_names(_SAMPLE)
        self.assertEqual(_MISSING, self.problems(environments.environment("monasca-persister"), found).keys())

    def test_all_imports_of_the_persister_exist(self):
        self.assert_imports_resolve("monasca-persister", "monasca_persister")

    def test_all_imports_of_the_notification_service_exist(self):
        self.assert_imports_resolve("monasca-notification", "monasca_notification")

    def test_all_imports_of_the_api_exist(self):
        self.assert_imports_resolve("monasca-api", "monasca_api")

    def test_all_imports_of_the_agent_exist(self):
        self.assert_imports_resolve("monasca-agent", "monasca_agent", "monasca_setup")
