# SPDX-License-Identifier: Apache-2.0
import io
from pathlib import Path
from unittest import mock

import fixtures
from oslotest import base

from monasca_common.cli.main import main
from monasca_common.kafka.errors import ConfigurationError
from monasca_common.operations.dashboard import passwords
from monasca_common.operations.dashboard.passwords import PasswordFile, password_line

PASSWORD = "correct horse battery"


class PasswordFileTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.useFixture(fixtures.MonkeyPatch("monasca_common.operations.dashboard.passwords._N", 2**4))
        self.path = Path(self.useFixture(fixtures.TempDir()).path) / "users"

    def file(self, *lines):
        self.path.write_text("\n".join(lines) + "\n")
        return PasswordFile(self.path)

    def test_a_user_logs_in_with_the_password_of_the_line(self):
        file = self.file("# operators", "", password_line("ada", PASSWORD))
        self.assertTrue(file.log_in("ada", PASSWORD))
        self.assertFalse(file.log_in("ada", PASSWORD + "x"))
        self.assertFalse(file.log_in("bob", PASSWORD))

    def test_a_line_does_not_contain_the_password_and_is_different_each_time(self):
        lines = {password_line("ada", PASSWORD) for _ in range(2)}
        self.assertEqual(2, len(lines))
        self.assertFalse([line for line in lines if "horse" in line])

    def test_a_change_of_the_file_takes_effect_immediately(self):
        file = self.file(password_line("ada", PASSWORD))
        self.file(password_line("bob", PASSWORD))
        self.assertFalse(file.log_in("ada", PASSWORD))
        self.assertTrue(file.log_in("bob", PASSWORD))

    def test_an_invalid_line_is_refused_without_quoting_it(self):
        good = password_line("ada", PASSWORD)
        for wrong in ("ada:secret", good.replace("scrypt", "md5"), good.replace(":16:", ":17:"), good[:-8]):
            error = self.assertRaises(ConfigurationError, self.file, good, wrong)
            self.assertIn("line 2 of", str(error))
            self.assertNotIn(wrong, str(error))

    def test_a_hash_that_takes_too_much_memory_is_refused(self):
        self.assertRaises(ConfigurationError, self.file, password_line("ada", PASSWORD).replace(":16:", f":{2**30}:"))

    def test_a_missing_file_is_an_error(self):
        self.assertIn(str(self.path), str(self.assertRaises(ConfigurationError, PasswordFile, self.path)))

    def test_a_name_that_would_break_the_line_is_refused(self):
        for user in ("", "a:b", "a\nb", "x" * 65):
            self.assertRaises(ConfigurationError, password_line, user, PASSWORD)


class CostTest(base.BaseTestCase):
    def test_a_password_costs_at_least_32_mib(self):
        self.assertGreaterEqual(128 * passwords._N * passwords._R, 32 * 2**20)


class PasswordCommandTest(base.BaseTestCase):
    def test_line_ends_are_not_part_of_the_password(self):
        out = io.StringIO()
        with mock.patch("sys.stdin", io.StringIO(f"{PASSWORD}\r\n")), mock.patch("sys.stdout", out):
            self.assertEqual(0, main(["dashboard", "password", "--user", "ada"]))
        path = Path(self.useFixture(fixtures.TempDir()).path, "users")
        path.write_text(out.getvalue())
        self.assertTrue(PasswordFile(path).log_in("ada", PASSWORD))
