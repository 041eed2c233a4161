# SPDX-License-Identifier: Apache-2.0
"""The environments of published services equal an installation of this package together with a service."""

import subprocess
from importlib import metadata

from oslotest import base

from monasca_common.tests.functional.services import environments
from monasca_common.tests.periodic import periodic

_WHAT_IS_INSTALLED = """
from importlib import metadata
import monasca_common
print(metadata.version("monasca-common"), monasca_common.__file__)
"""


@periodic("a published service; the normal run contains MonascaPersisterTest")
class EnvironmentTest(base.BaseTestCase):
    def assert_pip_agrees(self, service):
        self.assertEqual("", environments.environment(service).pip_check())

    def test_pip_check_passes_for_the_persister_with_this_package(self):
        self.assert_pip_agrees("monasca-persister")

    def test_pip_check_passes_for_the_notification_service_with_this_package(self):
        self.assert_pip_agrees("monasca-notification")

    def test_pip_check_passes_for_the_api_with_this_package(self):
        self.assert_pip_agrees("monasca-api")

    def test_pip_check_passes_for_the_agent_with_this_package(self):
        self.assert_pip_agrees("monasca-agent")

    def test_pip_check_fails_without_this_package(self):
        persister = environments.environment("monasca-persister")
        below = environments.Environment(persister.below)
        self.assertIn("monasca-common, which is not installed", below.pip_check())

    def test_the_services_extra_has_undeclared_imports_of_the_notification_service(self):
        extra = {
            each.partition(">")[0] for each in metadata.requires("monasca-common") if 'extra == "services"' in each
        }
        self.assertEqual({"Jinja2", "PyMySQL"}, extra)
        below = environments.environment("monasca-notification").below
        named = metadata.Distribution.at(next(below.glob("lib/*/site-packages/monasca_notification-*.dist-info")))
        always = [each for each in named.requires or () if "extra ==" not in each]
        self.assertFalse([each for each in always if each.startswith(("Jinja2", "PyMySQL"))])
        subprocess.run([below / "bin" / "python", "-c", "import jinja2, pymysql"], timeout=120, check=True)

    def test_a_service_runs_on_this_checkout(self):
        persister = environments.environment("monasca-persister")
        shown = subprocess.run(
            [persister.python, "-c", _WHAT_IS_INSTALLED],
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
            cwd="/",
        )
        version, path = shown.stdout.split()
        self.assertEqual(metadata.version("monasca-common"), version)
        self.assertTrue(path.startswith(str(persister.folder)), path)

    def test_an_unknown_program_is_refused_with_the_known_ones(self):
        persister = environments.environment("monasca-persister")
        error = self.assertRaises(FileNotFoundError, persister.program, "monasca-perister")
        self.assertIn("monasca-persister", str(error))
