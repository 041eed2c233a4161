# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import fixtures
from oslotest import base

from monasca_common.jars import list_file, pinned_lists, read_digests, read_list


class TestLists(base.BaseTestCase):
    def test_each_version_of_kafka_that_the_tests_run_is_pinned_with_all_of_its_jars(self):
        for version in ("3.9.2", "4.3.0", "4.4.0"):
            names = [jar.name for jar in read_list(list_file(f"kafka-{version}"))]
            self.assertIn(f"kafka_2.13-{version}.jar", names)
            self.assertGreaterEqual(len(names), 45)
            self.assertEqual(len(names), len({*names}))

    def test_the_connector_is_pinned_without_the_jars_that_pyspark_ships(self):
        for version, pool, client in (("4.0.0", "2.12.0", "3.9.0"), ("4.2.0", "2.13.1", "3.9.2")):
            names = {jar.name for jar in read_list(list_file(f"spark-{version}"))}
            self.assertEqual(
                {
                    f"commons-pool2-{pool}.jar",
                    f"kafka-clients-{client}.jar",
                    f"spark-sql-kafka-0-10_2.13-{version}.jar",
                    f"spark-token-provider-kafka-0-10_2.13-{version}.jar",
                },
                names,
            )

    def test_every_list_is_named(self):
        self.assertLessEqual({"kafka-4.3.0", "spark-4.0.0"}, {*pinned_lists()})

    def test_a_jar_has_the_path_of_a_maven_repository(self):
        jar = next(jar for jar in read_list(list_file("spark-4.0.0")) if jar.artifact == "commons-pool2")
        self.assertEqual("org/apache/commons/commons-pool2/2.12.0/commons-pool2-2.12.0.jar", jar.path)

    def test_a_line_without_a_digest_or_coordinates_is_named(self):
        file = Path(self.useFixture(fixtures.TempDir()).path, "digests")
        for line in ("", "abc  a.jar", f"{'0' * 64}", f"{'G' * 64}  a.jar"):
            file.write_text(f"{'0' * 64}  good.jar\n{line}\n")
            self.assertIn("line 2", str(self.assertRaises(ValueError, read_digests, file)))
        file.write_text(f"{'0' * 64}  good.jar\n")
        self.assertIn("good.jar", str(self.assertRaises(ValueError, read_list, file)))
