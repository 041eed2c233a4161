# SPDX-License-Identifier: Apache-2.0
"""Silences. Tests with PostgreSQL inherit the mixin, too."""

from monasca_common.alarms import silences
from monasca_common.alarms.silences import Silence
from monasca_common.tests.unit.api.alarms_case import AlarmsCase
from monasca_common.tests.unit.api.api_case import NOW_MS
from monasca_common.tests.unit.storage.sqlite_case import SqliteTestCase

PATH = "/v2.0/silences"
HOUR_MS, DAY_MS = 3_600_000, 86_400_000
MAINTENANCE = {
    "dimensions": {"hostname": "h1", "région": "b"},
    "from": "2026-09-21T14:00:00Z",
    "until": "2026-09-22T14:30:00.500Z",
    "author": "ann",
    "comment": "new disks",
}


class SilencesContract(AlarmsCase):
    def make(self, *, tenant="t1", **changes):
        given = {"dimensions": {}, "until": NOW_MS + HOUR_MS, "author": "ann", **changes}
        return self.ask("POST", PATH, given, 201, tenant=tenant)

    def test_silences_are_created_read_listed_and_ended(self):
        made = self.ask("POST", PATH, MAINTENANCE, 201)
        path = f"{PATH}/{made['id']}"
        self.assertEqual(
            {
                "id": made["id"],
                "links": [{"rel": "self", "href": f"http://falconframework.org{path}"}],
                **MAINTENANCE,
                "from": "2026-09-21T14:00:00.000Z",
                "created_timestamp": "2026-09-21T14:13:20.123Z",
            },
            made,
        )
        self.assertEqual(made, self.get(path))
        listed = self.get(PATH)
        self.assertEqual(({"links", "elements"}, [made]), (set(listed), listed["elements"]))
        self.assertIsNone(self.ask("DELETE", path, expected=204))
        for method in ("GET", "DELETE"):
            self.assertIn("there is no silence", self.message(method, path, None, 404))

    def test_a_silence_starts_now_by_default_and_times_may_be_milliseconds(self):
        made = self.make(until=NOW_MS + 5)
        self.assertEqual(("2026-09-21T14:13:20.123Z", "2026-09-21T14:13:20.128Z"), (made["from"], made["until"]))

    def test_violations_are_refused_with_their_places(self):
        violations = (
            ({"from": NOW_MS, "until": NOW_MS}, "until must be later than from"),
            ({"from": NOW_MS - 2, "until": NOW_MS}, "until has passed"),
            ({"until": MAINTENANCE["from"], "from": MAINTENANCE["until"]}, "until must be later than from"),
            ({"until": NOW_MS + 367 * DAY_MS}, "until is more than 366 days after from"),
            ({"from": NOW_MS + 367 * DAY_MS, "until": NOW_MS + 368 * DAY_MS}, "from is more than 366 days from now"),
            ({"until": "tomorrow"}, "until must be milliseconds"),
            ({"from": "2026-13-01T00:00:00Z"}, "from must be milliseconds"),
            ({"until": -1}, "until must be milliseconds"),
            ({"until": 2**63}, "until must be milliseconds"),
            ({"until": None}, "until"),
            ({"until": []}, "until"),
            ({"author": ""}, "author must not be empty"),
            ({"author": "x" * 256}, "author has 256 characters"),
            ({"author": "\0"}, "author has a NUL"),
            ({"comment": "x" * 1001}, "comment has 1001 characters"),
            ({"comment": 5}, "$.comment"),
            ({"dimensions": {"": "b"}}, "dimensions"),
            ({"dimensions": {"a": "x" * 256}}, "dimensions.a has 256 characters"),
            ({"dimensions": {"a": "\0"}}, "dimensions.a has a NUL"),
            ({"dimensions": {"a": 5}}, "$.dimensions"),
            ({"dimensions": {f"k{n}": "v" for n in range(101)}}, "dimensions has 101 entries"),
            ({"dimensions": ["a"]}, "$.dimensions"),
            ({"dimensions": None}, "$.dimensions"),
        )
        self.assert_refused(PATH, MAINTENANCE, violations, ("author", "dimensions", "until"))

    def test_the_number_of_silences_per_tenant_is_limited(self):
        stored = silences.Silences(self.alarms_database)
        most = silences.MOST_OF_A_TENANT
        silences.MOST_OF_A_TENANT = 2
        self.addCleanup(setattr, silences, "MOST_OF_A_TENANT", most)
        self.make()
        stored.create(Silence("t1", {}, NOW_MS - 9, NOW_MS - 5, "ann"), NOW_MS - 7)
        last = self.make()
        refused = self.message("POST", PATH, {"dimensions": {}, "until": NOW_MS + 5, "author": "ann"}, 422)
        self.assertIn("the tenant has 2 silences that have not ended", refused)
        self.make(tenant="t2")
        self.ask("DELETE", f"{PATH}/{last['id']}", expected=204)
        self.make()

    def test_silences_of_other_tenants_are_not_accessible(self):
        made = self.make()
        self.assertEqual([], self.elements(PATH, tenant="t2"))
        for method in ("GET", "DELETE"):
            self.ask(method, f"{PATH}/{made['id']}", None, 404, tenant="t2")
        self.assertEqual([made], self.elements(PATH))

    def test_a_list_is_in_order_of_begin_paged_and_filtered_by_active_silences(self):
        for author, begin, end in (("b", -HOUR_MS, 3), ("a", 0, 2), ("c", 1, 9)):
            self.make(**{"from": NOW_MS + begin, "until": NOW_MS + end, "author": author})

        def authors(query):
            return "".join(each["author"] for each in self.elements(PATH, query=query))

        self.assertEqual("bac", authors(""))
        self.assertEqual("ba", authors("lasting=true"))
        self.now_ms += 2
        self.assertEqual("bc", authors("lasting=true"))
        found = self.get(PATH, query="limit=1&offset=1")
        self.assertEqual((["a"], 2), ([each["author"] for each in found["elements"]], len(found["links"])))
        for wrong in ("offset=a", "limit=0"):
            self.ask("GET", PATH, None, 422, query=wrong)


class TestSilences(SilencesContract, SqliteTestCase):
    pass
