# SPDX-License-Identifier: Apache-2.0
"""``notification silence``: silences, as an operator makes them."""

import datetime
import json

import fixtures

from monasca_common.tests.unit.cli.command_case import CommandCase
from monasca_common.tests.unit.storage.sqlite_case import copy_schema


class SilenceCommandsTest(CommandCase):
    def setUp(self):
        super().setUp()
        path = f"{self.useFixture(fixtures.TempDir()).path}/monasca.sqlite"
        copy_schema(path)
        self.configuration = f"[alarms]\nconnection = sqlite:///{path}\n"

    def silence(self, word, *arguments, tenant="t1"):
        self.command = ("notification", "silence", word)
        return self.run_command("--tenant", tenant, *arguments)

    def listed(self, **tenant):
        return json.loads(self.silence("list", "-f", "json", **tenant)[1])

    def test_one_is_made_listed_and_removed_by_its_tenant(self):
        arguments = ("--dimension", "hostname=a=b", "--minutes", "90", "--author", "ann", "--comment", "new disks")
        status, out, err = self.silence("add", *arguments)
        self.assertEqual((0, ""), (status, err))
        made = out.strip()

        status, out, _ = self.silence("list", "--lasting", "-f", "json")
        [found] = json.loads(out)
        self.assertEqual((made, {"hostname": "a=b"}, "ann"), (found["id"], found["dimensions"], found["author"]))
        begin, end = (datetime.datetime.fromisoformat(found[name]) for name in ("from", "until"))
        self.assertEqual(90 * 60, (end - begin).total_seconds())
        self.assertIn(" hostname=a=b | ann    | new disks ", self.silence("list")[1])
        self.assertEqual([], self.listed(tenant="t2"))
        status, _, err = self.silence("remove", made, tenant="t2")
        self.assertEqual(1, status)
        self.assertIn("there is no silence with the id", err)
        self.assertEqual((0, "", ""), self.silence("remove", made))
        self.assertEqual([], self.listed())

    def test_what_breaks_a_rule_is_told(self):
        for arguments, told in (
            (("--until", "2001-01-01T00:00:00Z", "--author", "a"), "until must be later than from"),
            (("--minutes", "5", "--author", ""), "author must not be empty"),
        ):
            status, _, err = self.silence("add", *arguments)
            self.assertEqual(1, status)
            self.assertIn(told, err)
        for arguments, told in (
            (("--minutes", "5"), "--author"),
            (("--author", "a"), "--until"),
            (("--author", "a", "--until", "soon"), "'soon' is not a time"),
            (("--author", "a", "--minutes", "5", "--dimension", "h"), "'h' is not a dimension"),
        ):
            status, _, err = self.silence("add", *arguments)
            self.assertEqual(2, status)
            self.assertIn(told, err)
