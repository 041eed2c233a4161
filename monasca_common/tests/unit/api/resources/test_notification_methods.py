# SPDX-License-Identifier: Apache-2.0
"""Notification methods. Tests with PostgreSQL inherit the mixin, too."""

from cryptography.fernet import Fernet

from monasca_common.alarms.address_keys import AddressKeys
from monasca_common.tests.unit.api.alarms_case import AlarmsCase
from monasca_common.tests.unit.storage.sqlite_case import SqliteTestCase

PATH = "/v2.0/notification-methods"
EMAIL = {"name": "mail", "type": "EMAIL", "address": "root@localhost"}
HOOK = {"name": "hook", "type": "WEBHOOK", "address": "http://localhost:4533/a", "period": 60}


class NotificationMethodsContract(AlarmsCase):
    def test_methods_are_created_read_listed_replaced_updated_and_deleted(self):
        made = self.ask("POST", PATH, {**EMAIL, "type": "eMail"}, 201)
        path = f"{PATH}/{made['id']}"
        self.assertEqual(
            {
                "id": made["id"],
                "links": [{"rel": "self", "href": f"http://falconframework.org{path}"}],
                **EMAIL,
                "period": 0,
            },
            made,
        )
        self.assertEqual(made, self.get(path))
        listed = self.get(PATH)
        self.assertEqual(({"links", "elements"}, [made]), (set(listed), listed["elements"]))
        self.assertEqual(made | HOOK, self.ask("PUT", path, HOOK))
        self.assertEqual(made | HOOK | {"name": "b"}, self.ask("PATCH", path, {"name": "b", "address": None}))
        self.assertEqual(made | HOOK | {"name": "b"}, self.get(path))
        self.assertIsNone(self.ask("DELETE", path, expected=204))
        for method, body in (("GET", None), ("PUT", HOOK), ("PATCH", {}), ("DELETE", None)):
            self.assertIn("there is no notification method", self.message(method, path, body, 404))

    def test_violations_are_refused_with_their_places(self):
        violations = (
            ({"name": ""}, "name must not be empty"),
            ({"name": "x" * 251}, "name has 251 characters"),
            ({"name": "\0"}, "name has a NUL"),
            ({"name": 5}, "$.name"),
            ({"address": "x" * 513}, "address has 513"),
            ({"address": "name@"}, "address is not an e-mail address"),
            ({"type": "emAIL", "address": "name@"}, "address is not an e-mail address"),
            ({"type": "random"}, "type is not one of EMAIL"),
            ({"type": "webHook", "address": "localhost:123"}, "address is not an HTTP or HTTPS URL"),
            ({"type": "WEBHOOK", "address": "ftp://localhost"}, "address is not an HTTP or HTTPS URL"),
            ({"type": "WEBHOOK", "address": "http://[::1"}, "address is not an HTTP or HTTPS URL"),
            ({"type": "WEBHOOK", "address": "http://a:99999"}, "address is not an HTTP or HTTPS URL"),
            ({"type": "WEBHOOK", "address": " http://a"}, "address is not an HTTP or HTTPS URL"),
            ({"type": "WEBHOOK", "address": "http://a/b c"}, "address is not an HTTP or HTTPS URL"),
            ({"type": "WEBHOOK", "address": "http://a\n"}, "address is not an HTTP or HTTPS URL"),
            ({"type": "WEBHOOK", "address": "ht\ntp://a"}, "address is not an HTTP or HTTPS URL"),
            ({"type": "WEBHOOK", "address": "http://a/\x01"}, "address is not an HTTP or HTTPS URL"),
            ({"type": "WEBHOOK", "address": "http://user:password@a/"}, "address is not an HTTP or HTTPS URL in ASCII"),
            ({"type": "WEBHOOK", "address": "http://a/é"}, "address is not an HTTP or HTTPS URL in ASCII"),
            ({"type": "WEBHOOK", "address": "http://a\\b/"}, "address is not an HTTP or HTTPS URL in ASCII"),
            ({"type": "WEBHOOK", "address": "http://a$b/"}, "address is not an HTTP or HTTPS URL in ASCII"),
            ({"address": "é@example.org"}, "address is not an e-mail address in ASCII"),
            ({"address": "<a@example.org>"}, "address is not an e-mail address in ASCII"),
            ({"address": "a\x01@b"}, "address is not an e-mail address"),
            ({**HOOK, "period": 10}, "period must be 0 or 60"),
            ({"period": 60}, "period must be 0"),
            ({"period": 1.2}, "$.period"),
            ({"period": "zero"}, "$.period"),
            ({"period": 10**12}, "period must be 0"),
        )
        self.assert_refused(PATH, EMAIL, violations, ("name", "type", "address"))

    def test_a_change_is_validated_with_the_unchanged_members(self):
        made = self.ask("POST", PATH, HOOK, 201)
        path = f"{PATH}/{made['id']}"
        self.ask("PATCH", path, {"period": 5}, 422)
        self.assertIn("period must be 0", self.message("PATCH", path, {"type": "EMAIL", "address": "a@b"}, 422))
        self.ask("PUT", path, {"name": "a", "type": "WEBHOOK"}, 422)
        self.assertEqual(made, self.get(path))
        changed = self.ask("PATCH", path, {"type": "email", "address": "a@b", "period": "0"})
        self.assertEqual(made | {"type": "EMAIL", "address": "a@b", "period": 0}, changed)

    def test_names_are_unique_per_tenant(self):
        made = self.ask("POST", PATH, EMAIL, 201)
        self.assertIn("another notification method has this name", self.message("POST", PATH, EMAIL, 409))
        self.ask("POST", PATH, EMAIL, 201, tenant="t2")
        other = self.ask("POST", PATH, HOOK, 201)
        self.ask("PATCH", f"{PATH}/{other['id']}", {"name": "mail"}, 409)
        self.ask("PUT", f"{PATH}/{other['id']}", EMAIL, 409)
        self.assertEqual(made, self.ask("PUT", f"{PATH}/{made['id']}", EMAIL))

    def test_rows_of_other_tenants_are_not_accessible(self):
        made = self.ask("POST", PATH, EMAIL, 201)
        path = f"{PATH}/{made['id']}"
        self.assertEqual([], self.elements(PATH, tenant="t2"))
        for method, body in (("GET", None), ("PUT", HOOK), ("PATCH", {"name": "b"}), ("DELETE", None)):
            self.ask(method, path, body, 404, tenant="t2")
        self.assertEqual([made], self.elements(PATH))

    def test_a_list_is_sorted_by_code_point_and_then_by_id(self):
        addresses = {"b": "z@a", "B": "a@a", "é": "a@a", "a": "m@a"}
        made = {}
        for name, address in addresses.items():
            self.now_ms += 1
            made[name] = self.ask("POST", PATH, {"name": name, "type": "EMAIL", "address": address}, 201)
        self.now_ms += 1
        self.ask("PATCH", f"{PATH}/{made['b']['id']}", {"name": "b"})

        def names(query=""):
            return [each["name"] for each in self.elements(PATH, query=query)]

        by_id = sorted(made, key=lambda name: made[name]["id"])
        self.assertEqual(by_id, names())
        self.assertEqual(by_id, names("sort_by=type"))
        self.assertEqual(by_id[::-1], names("sort_by=id%20desc"))
        self.assertEqual(["B", "a", "b", "é"], names("sort_by=name"))
        self.assertEqual(["é", "b", "a", "B"], names("sort_by=name+DESC"))
        self.assertEqual(["é", "B", "a", "b"], names("sort_by=address%20asc,name%20desc"))
        self.assertEqual(["b", "B", "é", "a"], names("sort_by=created_at"))
        self.assertEqual(["B", "é", "a", "b"], names("sort_by=updated_at"))
        for wrong in ("random", "name%20up", "name;id", "name%20asc%20asc"):
            self.assertIn("sort_by contains", self.message("GET", PATH, None, 422, query=f"sort_by={wrong}"))

    def test_the_offset_is_a_number_of_rows(self):
        for n in range(5):
            self.ask("POST", PATH, {**EMAIL, "name": f"n{n}"}, 201)
        found = self.get(PATH, query="sort_by=name&limit=2&offset=1")
        self.assertEqual(["n1", "n2"], [each["name"] for each in found["elements"]])
        (following,) = [link["href"] for link in found["links"] if link["rel"] == "next"]
        self.assertEqual({"offset=3", "limit=2", "sort_by=name"}, set(following.partition("?")[2].split("&")))
        found = self.get(PATH, query="sort_by=name&limit=2&offset=3")
        self.assertEqual((2, 1), (len(found["elements"]), len(found["links"])))
        self.assertEqual([], self.elements(PATH, query="offset=9999999999"))
        for wrong in ("offset=a", "offset=-1", "limit=0"):
            self.ask("GET", PATH, None, 422, query=wrong)

    def test_the_types_of_methods_are_listed(self):
        found = self.get(f"{PATH}/types")
        types = ["EMAIL", "JIRA", "PAGERDUTY", "SLACK", "WEBHOOK"]
        self.assertEqual(({"links", "elements"}, [{"type": each} for each in types]), (set(found), found["elements"]))


class TestNotificationMethods(NotificationMethodsContract, SqliteTestCase):
    pass


class TestEncryptedNotificationMethods(NotificationMethodsContract, SqliteTestCase):
    keys = AddressKeys([Fernet.generate_key().decode()])

    def test_a_missing_encryption_key_gets_status_503(self):
        made = self.ask("POST", PATH, EMAIL, 201)
        self.keys = AddressKeys([Fernet.generate_key().decode()])
        self.client = self.application()
        self.assertEqual(
            "the database is unavailable: repeat the request later",
            self.message("GET", f"{PATH}/{made['id']}", None, 503),
        )
