# SPDX-License-Identifier: Apache-2.0
from monasca_common.storage.errors import (
    NotSupported,
    QueryTimeout,
    QueryTooLarge,
    SchemaMismatch,
    StorageError,
    StorageUnavailable,
)
from monasca_common.tests.unit.api.api_case import ApiCase
from monasca_common.tests.unit.storage.sqlite_case import SqliteTestCase


class TestOfStorage(ApiCase, SqliteTestCase):
    def test_what_storage_cannot_do_is_told_by_code_and_without_its_secrets(self):
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

    def test_a_database_that_does_not_exist_yet_is_503(self):
        reader = self.empty_database().storage().open_reader()
        self.addCleanup(reader.close)
        self.assertEqual(503, self.new_client(reader=reader).simulate_get("/v2.0/metrics").status_code)
