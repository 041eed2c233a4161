# SPDX-License-Identifier: Apache-2.0
"""The base of tests of reads: an application with a SQLite file."""

from collections.abc import Mapping
from types import MappingProxyType
from urllib.parse import parse_qsl, urlsplit

from monasca_common.alarms.database import AlarmsDatabase
from monasca_common.api import paging
from monasca_common.api.query import iso
from monasca_common.kafka import ProducerPool
from monasca_common.kafka.testing import MemoryKafka
from monasca_common.storage.base import Kind, Rows
from monasca_common.tests.contracts.storage.scenario import claim, make_series, measurement, message_id
from monasca_common.tests.unit.api.api_case import client_of
from monasca_common.tests.unit.storage.sqlite_case import SqliteTestCase

BASE_MS = 1_790_000_000_000
START = iso(BASE_MS)
PAGE_LIMIT = 50


class Reads:
    """A mixin for a case with ``self.database``: an application and requests to it."""

    page_limit = PAGE_LIMIT
    settings: Mapping[str, object] = MappingProxyType({})

    def setUp(self):
        super().setUp()
        self.patch(paging, "PAGE_LIMIT", self.page_limit)
        self._next = 0
        reader = self.database.storage().open_reader()
        self.addCleanup(reader.close)
        self.client = self.application(reader, **self.settings)

    def application(self, reader, **changes):
        kafka = self.useFixture(MemoryKafka())
        producers = ProducerPool(lambda _: kafka.producer())
        alarms = AlarmsDatabase(self.database.settings)
        self.addCleanup(alarms.close)
        return client_of(producers, reader, changes, alarms_database=alarms)

    def store(self, *rows, kind=Kind.METRICS):
        offsets = range(self._next, self._next + len(rows))
        self._next = offsets.stop
        with self.database.storage().open_writer() as writer:
            writer.write(claim(offsets.start, offsets.stop), Rows(kind, rows, offsets, tuple(map(message_id, offsets))))

    def result(self, path, expected=200, *, client=None, tenant="tenant", **parameters):
        client, headers = client or self.client, {"X-Project-Id": tenant}
        result = client.simulate_get(path, params=parameters, params_csv=True, headers=headers)
        if expected is not None:
            self.assertEqual(expected, result.status_code, result.text)
        self.assertEqual("application/json", result.headers["content-type"])
        return result

    def get(self, path, expected=200, **parameters):
        return self.result(path, expected, **parameters).json

    def elements(self, path, **parameters):
        return self.get(path, **parameters)["elements"]

    def results(self, path, **parameters):
        """Yield the responses of all pages, following next links."""
        while parameters is not None:
            result = self.result(path, **parameters)
            yield result
            parameters = following(result.json)

    def pages(self, path, **parameters):
        """Return the elements of all pages."""
        return [result.json["elements"] for result in self.results(path, **parameters)]


def following(body):
    """Return the parameters of the next page, or ``None``."""
    found = [link["href"] for link in body["links"] if link["rel"] == "next"]
    return dict(parse_qsl(urlsplit(found[0]).query)) if found else None


class ReadsCase(Reads, SqliteTestCase):
    """The metric cpu has three series of four rows, at the same four times; mem has one."""

    def setUp(self):
        super().setUp()
        self.cpu = [make_series("cpu", host=host, zone=zone) for host, zone in (("a", "1"), ("b", "1"), ("c", "2"))]
        self.mem = make_series("mem", host="a", bank="0")
        self.store(
            *(
                measurement(series=one, value=float(10 * n + t), time_ms=BASE_MS + 1000 * t)
                for n, one in enumerate(self.cpu)
                for t in range(4)
            ),
            measurement(series=self.mem, value=7, value_meta='{"why": "é"}', time_ms=BASE_MS),
        )
