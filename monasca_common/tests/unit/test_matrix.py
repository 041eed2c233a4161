# SPDX-License-Identifier: Apache-2.0
"""The matrix in ``tox.ini`` has the versions that the package declares."""

import configparser
import re
from importlib.metadata import metadata
from pathlib import Path

from oslotest import base

from monasca_common.devbroker.jars import KAFKA_VERSION, REGISTRY_LIST
from monasca_common.jars import pinned_lists
from monasca_common.tests.functional.test_matrix import OLDEST_KAFKA

CHECKOUT = Path(__file__).parents[3]
CONSTRAINTS = (CHECKOUT / "upper-constraints.txt").read_text()


def matrix_lists():
    """Return the lists of jars whose versions are also tested; the schema registry has one version."""
    return {*pinned_lists()} - {REGISTRY_LIST}


class MatrixTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        tox = configparser.RawConfigParser()
        tox.read(CHECKOUT / "tox.ini")
        [self.section] = [section for section in tox.sections() if section.startswith("testenv:matrix-")]
        self.cells = tox[self.section]
        self.labels = tox["tox"]["labels"]

    def factors(self, prefix):
        return {*re.findall(rf"\b{prefix}(\d+)\b", self.section)}

    def test_the_label_has_every_cell(self):
        self.assertIn(self.section.removeprefix("testenv:"), self.labels)

    def test_each_python_that_the_package_declares_has_a_cell(self):
        classifiers = metadata("monasca-common").get_all("Classifier")
        pythons = {found[1] for each in classifiers if (found := re.fullmatch(r".* :: Python :: (3\.\d+)", each))}
        self.assertEqual(pythons, {f"{each[0]}.{each[1:]}" for each in self.factors("py")})

    def test_each_pinned_kafka_and_pyspark_except_the_default_has_a_cell(self):
        default = {f"kafka-{KAFKA_VERSION}", f"spark-{self.constraint('pyspark')}"}
        pinned = {name.replace(".", "") for name in matrix_lists() - default}
        cells = {f"{name}-{each}" for name in ("kafka", "spark") for each in self.factors(f"(?:py)?{name}")}
        self.assertEqual(pinned, cells)
        self.assertIn(OLDEST_KAFKA.replace(".", ""), self.factors("kafka"))

    def test_each_factor_selects_its_version(self):
        for name in matrix_lists() - {f"kafka-{KAFKA_VERSION}", f"spark-{self.constraint('pyspark')}"}:
            program, _, version = name.partition("-")
            factor = f"{name.replace('.', '').replace('-', '')}:"
            selected = f"_{program}_version = {version}" if program == "kafka" else f"pyspark=={version}"
            lines = f"{self.cells['setenv']}\n{self.cells['commands_pre']}".lower().splitlines()
            self.assertTrue(any(factor in line and line.endswith(selected) for line in lines), name)

    def test_the_oldest_allowed_confluent_kafka_is_tested(self):
        requirements = (CHECKOUT / "requirements.txt").read_text()
        self.assertIn(f"confluent-kafka>={self.constraint('confluent-kafka')}", requirements)

    def constraint(self, name):
        return re.search(rf"(?m)^{name}==(\S+)", CONSTRAINTS)[1]
