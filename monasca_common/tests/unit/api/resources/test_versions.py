# SPDX-License-Identifier: Apache-2.0
from monasca_common.tests.unit.api.api_case import ApiCase


class TestVersions(ApiCase):
    def test_the_versions_are_listed(self):
        version = self.client.simulate_get("/v2.0").json
        self.assertEqual(("v2.0", "CURRENT"), (version["id"], version["status"]))
        self.assertTrue(version["links"][0]["href"].endswith("/v2.0"))
        self.assertRegex(version["updated"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$")
        self.assertEqual([version], self.client.simulate_get("/").json["elements"])
