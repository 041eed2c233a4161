# SPDX-License-Identifier: Apache-2.0
from oslotest import base

from monasca_common.api.routes import Routes, method_of


class TestRoutes(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.routes = Routes(["/", "/v2.0/alarms/count", "/v2.0/alarms/{alarm_id}/state-history", "/v2.0/a/"])

    def test_a_path_has_the_template_that_it_was_made_of(self):
        for path, template in (
            ("/", "/"),
            ("", "/"),
            ("/v2.0/alarms/count", "/v2.0/alarms/count"),
            ("/v2.0/alarms/count/", "/v2.0/alarms/count"),
            ("/v2.0/alarms/7.x/state-history", "/v2.0/alarms/{alarm_id}/state-history"),
            ("/v2.0/a", "/v2.0/a"),
        ):
            self.assertEqual(template, self.routes.find(path), path)

    def test_what_has_no_route_is_other(self):
        for path in ("/v2", "/v2x0/alarms/count", "/v2.0/alarms/a/b/state-history", "//x"):
            self.assertEqual("other", self.routes.find(path), path)

    def test_so_is_a_method_of_the_callers_own_making(self):
        self.assertEqual(["POST", "other", "other"], [method_of(name) for name in ("POST", "MOVE", "post")])
