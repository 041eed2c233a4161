# SPDX-License-Identifier: Apache-2.0
from monasca_common.tests.unit.api.api_case import ApiCase
from monasca_common.tests.unit.api.silences_contract import PATH, SilencesContract
from monasca_common.tests.unit.storage.sqlite_case import SqliteTestCase


class TestSilences(SilencesContract, SqliteTestCase):
    pass


class TestSilencesWithoutADatabaseOfAlarms(ApiCase):
    def test_it_is_said(self):
        for method in ("GET", "DELETE"):
            self.assertEqual(501, self.client.simulate_request(method, f"{PATH}/a").status_code)
