# SPDX-License-Identifier: Apache-2.0
from monasca_common.models.series import Series, series_id
from monasca_common.storage.errors import StorageUnavailable
from monasca_common.tests.unit.api.api_case import ApiCase, metric

METRICS = "/v2.0/metrics"


class Stored:
    """A database with these series."""

    def __init__(self, *names, unavailable=False):
        self.names = names
        self.unavailable = unavailable

    def iter_series(self, which, page):
        if self.unavailable:
            raise StorageUnavailable("unavailable")
        ids = sorted(series_id(which.tenant, which.region, name, {"host": "a"}) for name in self.names)
        after = bytes.fromhex(page.after) if page.after else b""
        found = [Series(own_id, which.tenant, which.region, "n", {}) for own_id in ids if own_id > after]
        return iter(found[: page.limit])


class TestSeriesLimit(ApiCase):
    settings = {"max_series_per_tenant": 3}  # noqa: RUF012

    def test_new_series_beyond_the_limit_are_refused_with_their_places(self):
        self.assertEqual(204, self.post(METRICS, [metric("a"), metric("b")]).status_code)
        answer = self.post(METRICS, [metric("a"), metric("c"), metric("d")])
        self.assertEqual((429, "60"), (answer.status_code, answer.headers["Retry-After"]))
        self.assertIn("(at 1, 2)", answer.json["error"]["message"])
        self.assertEqual(2, len(self.records()))

    def test_counted_series_are_always_accepted(self):
        body = [metric("a"), metric("b"), metric("c")]
        self.assertEqual([204] * 3, [self.post(METRICS, body).status_code for _ in range(3)])
        self.assertEqual(429, self.post(METRICS, metric("d")).status_code)

    def test_tenants_are_counted_separately(self):
        self.post(METRICS, [metric("a"), metric("b"), metric("c")])
        self.assertEqual(204, self.post(METRICS, metric("d"), {"X-Project-Id": "t2"}).status_code)

    def test_series_in_the_database_are_counted(self):
        client = self.new_client(reader=Stored("a", "b", "c"))
        self.assertEqual(204, self.post(METRICS, metric("b"), client=client).status_code)
        self.assertEqual(429, self.post(METRICS, metric("d"), client=client).status_code)

    def test_an_unavailable_database_does_not_stop_posts(self):
        client = self.new_client(reader=Stored(unavailable=True))
        self.assertEqual(204, self.post(METRICS, metric("a"), client=client).status_code)

    def test_no_limit_is_the_default(self):
        client = self.new_client(max_series_per_tenant=0)
        self.assertEqual(204, self.post(METRICS, [metric(f"m{n}") for n in range(50)], client=client).status_code)
