# SPDX-License-Identifier: Apache-2.0
import json

from monasca_common.api.access import Access
from monasca_common.api.problems import of_storage
from monasca_common.storage.errors import (
    LockTimeout,
    NotSupported,
    QueryTimeout,
    QueryTooLarge,
    SchemaMismatch,
    StorageError,
    StorageUnavailable,
)
from monasca_common.tests.unit.api.api_case import ApiCase
from monasca_common.tests.unit.storage.sqlite_case import SqliteTestCase


class TestStorageErrors(ApiCase, SqliteTestCase):
    def test_errors_of_storage_have_a_status_and_no_secrets(self):
        class Failing:
            def names(self, _which, _page):
                raise self.error

        reader = Failing()
        client = self.new_client(reader=reader)
        for error, code, retry in (
            (StorageUnavailable("host db.internal refused"), 503, True),
            (SchemaMismatch("no such table"), 503, True),
            (QueryTimeout("too slow"), 503, True),
            (QueryTooLarge("too much"), 422, False),
            (NotSupported("write only"), 501, False),
            (StorageError("odd"), 500, False),
        ):
            reader.error = error
            result = client.simulate_get("/v2.0/metrics/names")
            self.assertEqual((code, code), (result.status_code, result.json["error"]["code"]))
            self.assertEqual(retry, "retry-after" in result.headers)
            self.assertNotIn("db.internal", result.text)

    def test_a_wait_for_a_lock_is_not_reported_as_an_unavailable_database(self):
        problem = of_storage(LockTimeout("canceling statement due to lock timeout"))
        expected = "another transaction, such as an evaluation of alarms, has locked the rows: repeat the request later"
        self.assertEqual((503, expected), (problem.code, problem.description))

    def test_an_unexpected_error_is_logged_and_its_response_is_without_its_text(self):
        environ = {"REQUEST_METHOD": "GET", "PATH_INFO": "/x", "SERVER_PROTOCOL": "HTTP/1.1"}

        def failing(*_):
            raise ZeroDivisionError("a secret of the server")

        access = Access(failing, [], lambda *_: False)
        self.addCleanup(access.close)
        with self.assertLogs("monasca_common.api.problems", "ERROR") as logs:
            (within,) = access(dict(environ), lambda *_: None)
        self.assertEqual(["GET /x failed"], [record.getMessage() for record in logs.records])
        message = json.loads(within)["error"]["message"]
        self.assertEqual("the request failed; the log of the API contains the reason", message)
        self.assertNotIn(b"a secret of the server", within)

    def test_a_database_that_does_not_exist_yet_is_503(self):
        reader = self.empty_database().storage().open_reader()
        self.addCleanup(reader.close)
        self.assertEqual(503, self.new_client(reader=reader).simulate_get("/v2.0/metrics").status_code)
