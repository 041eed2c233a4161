# SPDX-License-Identifier: Apache-2.0
"""An installation from a wheel works, although the wheel lacks files that git does not track or packaging omits.
Its version is later than that of upstream, wherever it is built."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import fixtures
from oslotest import base
from packaging.version import Version

from monasca_common.tests.periodic import periodic

CHECKOUT = Path(__file__).parents[3]
[NEXT] = re.findall(r"(?m)^version = (.+)$", (CHECKOUT / "setup.cfg").read_text())
UPSTREAM = Version("3.8.0")  # its last release, of 2025
_PATIENCE_SECONDS = 280
_RELEASER = ("-c", "user.name=A releaser", "-c", "user.email=releaser@example.org")

_UPGRADE = """
import sys
from monasca_common.storage import StorageSettings, open_storage
from monasca_common.storage.sql import schema
assert schema.__file__.startswith(sys.argv[1]), schema.__file__
storage = open_storage(StorageSettings("sqlite", f"sqlite:///{sys.argv[1]}/monasca.sqlite"))
storage.upgrade()
print(storage.status().found == schema.REVISION)
"""
_VERSION = "import sys; from monasca_common.cli.main import main; sys.exit(main(['--version']))"


class WheelTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        if not (CHECKOUT / ".git").exists() or not shutil.which("git"):
            self.skipTest("a wheel is built from files that git tracks, and this is not a checkout")
        self.folder = self.useFixture(fixtures.TempDir()).path
        self.clone = f"{self.folder}/clone"
        self.run_program("git", "-c", "safe.directory=*", "clone", "--quiet", "--no-tags", str(CHECKOUT), self.clone)

    def run_program(self, *arguments, cwd=None, **variables):
        environment = {name: value for name, value in os.environ.items() if name != "PBR_VERSION"} | variables
        done = subprocess.run(
            arguments, capture_output=True, text=True, timeout=_PATIENCE_SECONDS, cwd=cwd, env=environment
        )
        self.assertEqual(0, done.returncode, done.stdout + done.stderr)
        return done.stdout

    def archive(self):
        """Return a folder with the files of the clone, without its git repository."""
        unpacked = f"{self.folder}/unpacked"
        self.run_program("git", "-C", self.clone, "archive", "--format", "zip", "--output", f"{unpacked}.zip", "HEAD")
        # Not a tar archive, because early releases of Python 3.11 lack the filters for its extraction.
        shutil.unpack_archive(f"{unpacked}.zip", unpacked)
        return unpacked

    def install(self, source):
        """Return the folder in which a wheel of ``source`` is unpacked, and the wheel's version."""
        pip = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation")
        self.run_program(*pip, "-w", f"{source}-wheel", source)
        [wheel] = Path(f"{source}-wheel").glob("*.whl")
        zipfile.ZipFile(wheel).extractall(f"{source}-installed")
        return f"{source}-installed", Version(wheel.name.split("-")[1])

    def printed_version(self, source):
        """Return the version that setup.py prints, without a build."""
        return Version(self.run_program(sys.executable, "setup.py", "--quiet", "--version", cwd=source).split()[-1])

    def tag(self, version):
        git = ("git", "-C", self.clone, *_RELEASER)
        self.run_program(*git, "tag", "--annotate", "--message", "a release", version)
        return git

    @periodic("packaging; the normal run contains test_a_tag_is_the_version")
    def test_the_migrations_in_a_wheel_create_the_schema(self):
        installed, version = self.install(self.clone)

        run = (sys.executable, "-c")
        shown = self.run_program(*run, _UPGRADE, installed, cwd=installed, PYTHONPATH=installed)
        self.assertEqual("True", shown.strip())
        shown = self.run_program(*run, _VERSION, cwd=installed, PYTHONPATH=installed)
        self.assertEqual(version, Version(shown.split()[-1]))

    @periodic("packaging; the normal run contains test_a_tag_is_the_version")
    def test_a_clone_and_an_archive_build_the_same_package_with_a_version_later_than_upstream(self):
        of_clone, clone_version = self.install(self.clone)
        of_archive, archive_version = self.install(self.archive())

        self.assertEqual(contents(of_clone), contents(of_archive))
        for version in (clone_version, archive_version):
            self.assertGreater(version, UPSTREAM)
            self.assertGreaterEqual(version, Version("4.0.0.dev0"))

    @periodic("an installation from the package index; the normal run contains CoreTest")
    def test_without_extras_the_script_prints_the_command_that_installs_the_missing_package(self):
        core = f"{self.folder}/core"
        tested = {"PIP_CONSTRAINT": str(CHECKOUT / "upper-constraints.txt"), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        self.run_program(sys.executable, "-m", "venv", core)
        self.run_program(f"{core}/bin/python", "-m", "pip", "install", "--quiet", self.clone, **tested)
        listed = json.loads(self.run_program(f"{core}/bin/python", "-m", "pip", "list", "--format=json", **tested))
        self.assertLessEqual(len({each["name"] for each in listed} - {"monasca-common", "pip"}), 30)
        script = (f"{core}/bin/monasca-common", "--version")
        refused = subprocess.run(script, capture_output=True, text=True, timeout=_PATIENCE_SECONDS)
        self.assertEqual((1, ""), (refused.returncode, refused.stdout))
        refusal, install = refused.stderr.split(" with ")
        self.assertEqual("monasca-common: cliff is not installed: install the commands", refusal)

        self.run_program(*shlex.split(install), **tested)

        [version] = [each["version"] for each in listed if each["name"] == "monasca-common"]
        self.assertEqual(f"monasca-common {version}\n", self.run_program(*script))

    def test_a_tag_is_the_version(self):
        self.tag(NEXT)

        self.assertEqual(Version(NEXT), self.printed_version(self.clone))

    @periodic("packaging; the normal run contains test_a_tag_is_the_version")
    def test_a_tag_of_an_upstream_release_does_not_change_the_next_version(self):
        git = self.tag("3.8.0")
        self.run_program(*git, "commit", "--quiet", "--allow-empty", "--message", "more")

        self.assertEqual(Version(f"{NEXT}.dev1"), self.printed_version(self.clone))


def contents(folder):
    """Return {path: bytes} of the package. Compiled files are empty here, because they depend on the build folder."""
    package = Path(folder, "monasca_common")
    return {
        str(path.relative_to(package)): b"" if path.suffix == ".so" else path.read_bytes()
        for path in package.rglob("*")
        if path.is_file()
    }
