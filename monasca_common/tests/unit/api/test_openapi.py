# SPDX-License-Identifier: Apache-2.0
"""What the API says of itself, and requests made of it by schemathesis."""

import contextlib
import json
import re

import schemathesis
from hypothesis import HealthCheck, Phase, given
from hypothesis import settings as hypothesis_settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import FailureGroup
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from monasca_common.api import openapi, query
from monasca_common.api.limits import PUBLIC_PATHS
from monasca_common.api.openapi import operations, text
from monasca_common.api.settings import ApiSettings
from monasca_common.models.limits import POSTED
from monasca_common.storage.base import Kind
from monasca_common.storage.testing.scenario import row
from monasca_common.tests.unit.api.reads_case import ReadsCase

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
EXAMPLES = 120  # of all operations together
FUZZED = hypothesis_settings(
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


class TestDescription(ReadsCase):
    def setUp(self):
        super().setUp()
        self.routes = self.client.app._app._app.routes
        self.document = self.client.simulate_get("/openapi.json").json

    def test_it_has_every_route_and_every_method(self):
        for template, resource in self.routes.items():
            if template == "/" or not template.endswith("/"):
                found = self.document["paths"][template]
                self.assertEqual(set(operations(resource)), found.keys() - {"parameters"}, template)

    def test_the_parameters_of_a_read_are_those_that_it_looks_at(self):
        for template, resource in self.routes.items():
            described = operations(resource).get("get")
            if described is None or template in PUBLIC_PATHS:
                continue
            looked_at = self.looked_at(template, described.parameters)
            self.assertEqual({each.name for each in described.parameters}, looked_at, template)

    def looked_at(self, template, parameters):
        names = set()

        class Recording(dict):
            def get(self, name, default=None):
                names.add(name)
                return super().get(name, default)

        init = query.Query.__init__

        def recording(made, *arguments, **named):
            init(made, *arguments, **named)
            made._values = Recording(made._values)

        self.addCleanup(setattr, query.Query, "__init__", init)
        query.Query.__init__ = recording
        values = {"name": "cpu", "start_time": "2026-01-31T00:00:00Z", "statistics": "avg", "dimension_name": "host"}
        required = {each.name: values[each.name] for each in parameters if each.required}
        answer = self.client.simulate_get(re.sub("{.*}", "a", template), params={**required, "group_by": "name"})
        self.assertEqual(404 if template.endswith("_id}") else 200, answer.status_code, answer.text)
        query.Query.__init__ = init
        return names

    def test_a_pattern_says_what_a_rule_says(self):
        for rule in (POSTED.name, POSTED.key, POSTED.value):
            pattern = re.compile(text(rule)["pattern"])
            for given_text in ("a", "a b", "_a", "é", "a(", "a;", 'a"', "a\\", "a\0", "a=", "{a}"):
                self.assertEqual(not list(rule.faults(given_text)), bool(pattern.search(given_text)), given_text)

    def test_settings_are_in_it(self):
        document = self.application(None, max_body_bytes=4096).simulate_get("/openapi.json").json
        (limit,) = [
            each["schema"]
            for each in document["paths"]["/v2.0/metrics"]["get"]["parameters"]
            if each["name"] == "limit"
        ]
        self.assertEqual(10_000, limit["default"])
        self.assertIn("4096 bytes", document["info"]["description"])

    def test_with_keystone_it_says_what_needs_a_token(self):
        data = openapi.OpenApi(self.routes, ApiSettings(), PUBLIC_PATHS)._data
        paths = json.loads(data)["paths"]
        for template, found in paths.items():
            for method in found.keys() - {"parameters"}:
                self.assertEqual(template not in PUBLIC_PATHS, "security" in found[method], template)

    def test_it_is_small(self):
        self.assertLess(len(self.client.simulate_get("/openapi.json").content), 64_000)


class TestFuzzed(ReadsCase):
    """Every operation that the description has; the same requests at every run."""

    def setUp(self):
        super().setUp()
        self.store(row(Kind.ALARM_HISTORY), kind=Kind.ALARM_HISTORY)

    def test_no_request_is_answered_by_an_error_of_the_server(self):
        self.assertLessEqual({200, 204}, self.fuzz(GenerationMode.POSITIVE))

    def test_neither_is_one_that_breaks_the_description(self):
        self.assertLessEqual({400, 422}, self.fuzz(GenerationMode.NEGATIVE))

    def fuzz(self, mode):
        schema = schemathesis.openapi.from_wsgi("/openapi.json", self.client.app)
        found = [each.ok() for each in schema.get_all_operations()]
        self.assertGreater(len(found), 15)
        return set().union(*(self.ask(each, mode, EXAMPLES // len(found)) for each in found))

    def ask(self, described, mode, examples):
        """Return the statuses of the answers."""
        statuses = set()

        @hypothesis_settings(FUZZED, max_examples=examples)
        @given(described.as_strategy(generation_mode=mode))
        def ask_once(case):
            response = case.call()
            try:
                case.validate_response(response, checks=CHECKS)
            except FailureGroup as failures:  # which is no `Exception`
                self.fail(str(failures))
            self.assertLess(response.status_code, 500, response.text)
            statuses.add(response.status_code)

        with contextlib.suppress(Unsatisfiable):  # without parameters there is nothing to break
            ask_once()
        return statuses
