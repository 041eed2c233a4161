# SPDX-License-Identifier: Apache-2.0
"""Each distribution that production needs has a known licence; only extras install copyleft."""

import re
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import fixtures
from oslotest import base

CHECKOUT = Path(__file__).parents[3]
# Copyleft that extends beyond its own files; each belongs to the optional extra of one database.
COPYLEFT = {"psycopg": "postgresql", "psycopg-binary": "postgresql"}
OTHER_EXTRAS = ("devbroker", "docs", "lint", "quickstart", "remote", "tempest", "test", "testing")
_COPYLEFT = re.compile(r"GPL|General Public|EUPL|SSPL|not declared", re.IGNORECASE)
_FAMILIES = ("0BSD", "Apache", "BSD", "GPL", "LGPL", "MIT", "MPL|Mozilla Public License")
_REQUIREMENT = re.compile(r"\s*(?P<name>[A-Za-z][\w.-]*)(\[\w+\])?(?P<rest>[<>=~!].*)")


def families(text):
    return {family for family in _FAMILIES if re.search(rf"(?<![A-Za-z0-9])({family})", text)}


def requirements():
    """Return (name, comment) of each requirement in the files."""
    for file in ("requirements.txt", "setup.cfg"):
        for line in (CHECKOUT / file).read_text().splitlines():
            if (found := _REQUIREMENT.fullmatch(line)) and re.match(r"[<>=~!]=?\d", found["rest"]):
                yield found["name"], found["rest"].partition(" # ")[2]


class LicencesTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.useFixture(fixtures.MonkeyPatch("sys.path", [str(CHECKOUT / "tools"), *sys.path]))
        import licences

        self.licences = licences

    def test_each_distribution_is_in_the_table_with_its_licence_and_its_users(self):
        table = self.licences.TABLE.read_text()

        self.assertEqual([], [row for row in self.licences.rows() if row not in table], "python tools/licences.py")

    def test_every_extra_for_production_is_checked(self):
        extras = distribution(self.licences.PACKAGE).metadata.get_all("Provides-Extra")

        self.assertEqual(sorted(OTHER_EXTRAS + self.licences.RUNTIME_EXTRAS), sorted(extras))

    def test_every_row_has_a_tested_version(self):
        pins = (CHECKOUT / "upper-constraints.txt").read_text().lower().replace("_", "-").replace(".", "-")

        rows = re.findall(r"(?m)^   \* - ([a-z0-9-]+)$", self.licences.TABLE.read_text())

        self.assertGreater(len(rows), 60)
        self.assertEqual([], [name for name in rows if f"\n{name}==" not in pins])

    def test_only_extras_install_copyleft(self):
        found = {}
        for extra in ("", *self.licences.RUNTIME_EXTRAS):
            for name, each in self.licences.needed([extra]).items():
                if _COPYLEFT.search(self.licences.licence(each)):
                    found.setdefault(name, set()).add(extra)

        self.assertEqual({name: {extra} for name, extra in COPYLEFT.items()}, found)

    def test_every_requirement_names_the_licence_that_the_distribution_declares(self):
        wrong = {}
        for name, comment in requirements():
            try:
                declared = self.licences.licence(distribution(name))
            except PackageNotFoundError:  # an extra that is not installed here
                declared = comment
            if not comment or families(comment) != families(declared):
                wrong[name] = (comment, declared)

        self.assertEqual({}, wrong)

    def test_families_of_licences_are_distinguished(self):
        self.assertEqual({"LGPL"}, families("LGPL-3.0-only"))
        self.assertEqual({"Apache", "MIT", "MPL|Mozilla Public License"}, families("MPL-2.0 AND (Apache-2.0 OR MIT)"))
        self.assertEqual({"BSD"}, families("BSD License"))
        self.assertEqual({"0BSD"}, families("0BSD"))
