# SPDX-License-Identifier: Apache-2.0
"""The base of tests of definitions, alarms and notification methods, with any database."""

import json

import sqlalchemy as sa

from monasca_common.alarms.address_keys import PLAIN
from monasca_common.alarms.database import AlarmsDatabase
from monasca_common.kafka import ProducerPool
from monasca_common.kafka.testing import MemoryKafka
from monasca_common.tests.unit.api.api_case import NOW_MS, client_of


class AlarmsCase:
    """A mixin for a case with ``self.database``: an application with the clock ``self.now_ms``."""

    keys = PLAIN

    def setUp(self):
        super().setUp()
        self.now_ms = NOW_MS
        self.alarms_database = AlarmsDatabase(self.database.settings)
        self.addCleanup(self.alarms_database.close)
        self.kafka = self.useFixture(MemoryKafka())
        self.client = self.application()

    def application(self, **changes):
        producer = self.kafka.producer()
        self.addCleanup(producer.close, 0.0)
        reader = self.database.storage().open_reader()
        self.addCleanup(reader.close)
        parts = {"now": lambda: self.now_ms / 1000, "alarms_database": self.alarms_database, "keys": self.keys}
        return client_of(ProducerPool(lambda _: producer), reader, changes, **parts)

    def ask(self, method, path, body=None, expected=200, *, tenant="t1", query=""):
        """Return the JSON of the response."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"X-Project-Id": tenant, "Content-Type": "application/json"}
        answer = self.client.simulate_request(method, path, body=data, headers=headers, query_string=query)
        self.assertEqual(expected, answer.status_code, answer.text)
        return answer.json if answer.content else None

    def get(self, path, expected=200, *, tenant="t1", query=""):
        return self.ask("GET", path, None, expected, tenant=tenant, query=query)

    def elements(self, path, *, tenant="t1", query=""):
        return self.get(path, tenant=tenant, query=query)["elements"]

    def message(self, method, path, body, expected, **named):
        """Return the message of the error."""
        return self.ask(method, path, body, expected, **named)["error"]["message"]

    def assert_refused(self, path, valid, violations, required):
        """Check that a POST creates nothing: with any of these changes (the error has their text), without a required
        member, or with a malformed body."""
        for changes, text in violations:
            self.assertIn(text, self.message("POST", path, valid | changes, 422), changes)
        for name in required:
            lacking = {key: value for key, value in valid.items() if key != name}
            self.assertIn(name, self.message("POST", path, lacking, 422))
        for body in (b"", b"{", b'{"%s": "\\ud800"}' % required[0].encode(), b"[" * 100_000):
            self.ask("POST", path, body, 400)
        for body in (b"[]", b"null", b"5"):
            self.ask("POST", path, body, 422)
        self.assertEqual([], self.elements(path))

    def statements(self, text):
        """Return the list that receives each later statement that contains the text, with its parameters."""
        found = []

        def note(_connection, _cursor, statement, parameters, _context, _executemany):
            if text in statement:
                found.append((statement, parameters))

        sa.event.listen(sa.Engine, "before_cursor_execute", note)
        self.addCleanup(sa.event.remove, sa.Engine, "before_cursor_execute", note)
        return found
