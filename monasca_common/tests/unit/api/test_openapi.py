# SPDX-License-Identifier: Apache-2.0
"""The OpenAPI description, and requests generated from it by schemathesis."""

import contextlib
import json
import re

import msgspec
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

from monasca_common.alarms import alarm_queries, alarm_tables, definitions, sent_notifications, silences
from monasca_common.alarms import notification_methods as methods
from monasca_common.api import openapi, query, resources
from monasca_common.api.limits import PUBLIC_PATHS
from monasca_common.api.paging import PAGE_LIMIT
from monasca_common.api.settings import ApiSettings
from monasca_common.models.limits import LONGEST_TEXT, MOST_DIMENSIONS, MOST_META_ENTRIES, POSTED, STORED, TextRule
from monasca_common.runtime.settings import StatusSettings
from monasca_common.storage.base import Kind
from monasca_common.storage.reader import FUNCTIONS
from monasca_common.tests.contracts.storage.scenario import row
from monasca_common.tests.unit.api.reads_case import ReadsCase

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
schemathesis.serializer.alias("application/x-protobuf", "application/octet-stream")
EXAMPLES = 120  # the total of all operations
FUZZED = hypothesis_settings(
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


METHODS = ("get", "post", "put", "patch", "delete")


def text(rule):
    """Return the schema of a string that keeps a rule."""
    start = f"(?!{re.escape(rule.prefix)})" if rule.prefix else ""
    forbidden = "".join(f"\\{character}" if character in '\\"' else character for character in rule.forbidden)
    pattern = f"^{start}[^\\u0000{forbidden}]*$"
    return {"type": "string", "minLength": rule.least, "maxLength": rule.most, "pattern": pattern}


class TestDescription(ReadsCase):
    def setUp(self):
        super().setUp()
        self.routes = self.client.app._app._app.routes
        self.document = self.client.simulate_get("/openapi.json").json

    def resolved(self, part):
        """Return the part with resolved references."""
        if isinstance(part, dict) and "$ref" in part:
            found = self.document
            for name in part["$ref"].removeprefix("#/").split("/"):
                found = found[name]
            return self.resolved(found)
        if isinstance(part, dict):
            return {name: self.resolved(value) for name, value in part.items()}
        return [self.resolved(each) for each in part] if isinstance(part, list) else part

    def schema(self, name):
        return self.resolved(self.document["components"]["schemas"][name])

    def parameter(self, template, name):
        parameters = self.resolved(self.document["paths"][template]["get"]["parameters"])
        (found,) = [each for each in parameters if each["name"] == name]
        return found

    def test_the_description_has_exactly_the_routes_and_methods(self):
        described = {template: found.keys() - {"parameters"} for template, found in self.document["paths"].items()}
        served = {
            template: {method for method in METHODS if hasattr(resource, f"on_{method}")}
            for template, resource in self.routes.items()
            if template == "/" or not template.endswith("/")
        }
        self.assertEqual(served, described)

    def test_each_value_in_a_path_is_described(self):
        for template, found in self.document["paths"].items():
            named = {each["name"] for each in self.resolved(found.get("parameters", [])) if each["in"] == "path"}
            self.assertEqual(set(re.findall(r"{(\w+)}", template)), named, template)

    def test_the_description_lists_the_parameters_that_a_read_uses(self):
        for template, found in self.document["paths"].items():
            if "get" not in found or template in PUBLIC_PATHS:
                continue
            parameters = self.resolved(found["get"].get("parameters", []))
            used_parameters = self.used_parameters(template, parameters)
            self.assertEqual({each["name"] for each in parameters}, used_parameters, template)

    def used_parameters(self, template, parameters):
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
        required = {each["name"]: values[each["name"]] for each in parameters if each.get("required")}
        answer = self.client.simulate_get(re.sub("{.*}", "a", template), params={**required, "group_by": "name"})
        self.assertEqual(404 if template.endswith("_id}") else 200, answer.status_code, answer.text)
        query.Query.__init__ = init
        return names

    def test_a_pattern_matches_the_rule(self):
        for rule in (POSTED.name, POSTED.key, POSTED.value):
            pattern = re.compile(text(rule)["pattern"])
            for given_text in ("a", "a b", "_a", "é", "a(", "a;", 'a"', "a\\", "a\0", "a=", "{a}"):
                self.assertEqual(not list(rule.faults(given_text)), bool(pattern.search(given_text)), given_text)

    def test_texts_have_the_rules_of_the_code(self):
        definition = self.schema("WholeAlarmDefinition")["properties"]
        alarm = self.schema("WholeAlarm")["properties"]
        method = self.schema("WholeNotificationMethod")["properties"]
        silence = self.schema("NewSilence")["properties"]
        for rule, described in (
            (POSTED.name, self.schema("MetricName")),
            (POSTED.key, self.schema("DimensionKey")),
            (POSTED.value, self.schema("DimensionValue")),
            (TextRule(), self.schema("Text")),
            (definitions.NAME, definition["name"]),
            (definitions.DESCRIPTION, definition["description"]),
            (methods.NAME, method["name"]),
            (methods.ADDRESS, method["address"]),
            (silences.AUTHOR, silence["author"]),
            (silences.COMMENT, silence["comment"]),
            (STORED.key, silence["dimensions"]["propertyNames"]),
            (STORED.value, silence["dimensions"]["additionalProperties"]),
        ):
            self.assertEqual(text(rule), described)
        for name, rule in (("lifecycle_state", alarm_tables.LIFECYCLE_STATE), ("link", alarm_tables.LINK)):
            self.assertEqual({**text(rule), "type": ["string", "null"]}, alarm[name])
        self.assertEqual(MOST_META_ENTRIES, self.schema("ValueMeta")["maxProperties"])
        self.assertEqual(MOST_DIMENSIONS, silence["dimensions"]["maxProperties"])
        self.assertEqual(LONGEST_TEXT, self.schema("Name")["maxLength"])

    def test_choices_and_bounds_match_the_code(self):
        definition = self.schema("WholeAlarmDefinition")["properties"]
        self.assertEqual(list(definitions.SEVERITIES), definition["severity"]["enum"])
        self.assertEqual(list(definitions.STATES), self.schema("WholeAlarm")["properties"]["state"]["enum"])
        self.assertEqual(list(methods.types()), self.schema("NotificationMethodType")["enum"])
        for template, name, choices in (
            ("/v2.0/alarm-definitions", "sort_by", definitions.SORTS),
            ("/v2.0/alarms", "sort_by", alarm_queries.SORTS),
            ("/v2.0/alarms/count", "group_by", alarm_queries.GROUPS),
            ("/v2.0/notification-methods", "sort_by", methods.SORTS),
            ("/v2.0/notifications", "state", sent_notifications.SENT_STATES),
            ("/v2.0/metrics/statistics", "statistics", FUNCTIONS),
        ):
            self.assertIn(f"of {', '.join(choices)}", self.parameter(template, name)["description"])
        period = self.parameter("/v2.0/metrics/statistics", "period")["schema"]
        self.assertEqual(
            (query.MAX_PERIOD_SECONDS, query.DEFAULT_PERIOD_SECONDS), (period["maximum"], period["default"])
        )
        self.assertEqual(PAGE_LIMIT, self.parameter("/v2.0/metrics", "limit")["schema"]["default"])

    def test_bodies_have_the_members_that_the_resources_read(self):
        for name, body in (
            ("NewAlarmDefinition", resources.alarm_definitions.NewDefinition),
            ("WholeAlarmDefinition", resources.alarm_definitions.WholeDefinition),
            ("ChangedAlarmDefinition", resources.alarm_definitions.ChangedDefinition),
            ("WholeAlarm", resources.alarms.WholeAlarm),
            ("ChangedAlarm", resources.alarms.ChangedAlarm),
            ("WholeNotificationMethod", resources.notification_methods.NewMethod),
            ("ChangedNotificationMethod", resources.notification_methods.ChangedMethod),
            ("NewSilence", resources.silences.NewSilence),
        ):
            fields = msgspec.structs.fields(body)
            required = {each.encode_name for each in fields if each.required}
            described = self.schema(name)
            self.assertEqual({each.encode_name for each in fields}, set(described["properties"]), name)
            self.assertEqual(required, set(described.get("required", ())), name)

    def test_the_description_contains_settings(self):
        document = self.application(None, max_body_bytes=4096).simulate_get("/openapi.json").json
        self.assertIn("4096 bytes", document["info"]["description"])
        self.assertNotIn("security", document)

    def test_the_description_omits_metrics_with_a_status_port(self):
        paths = json.loads(openapi.OpenApi(ApiSettings(status=StatusSettings(port=9999)))._data)["paths"]
        self.assertEqual({"/metrics"}, self.document["paths"].keys() - paths.keys())

    def test_the_description_names_the_requests_that_need_a_token(self):
        document = json.loads(openapi.OpenApi(ApiSettings())._data)
        self.assertEqual([{"token": []}, {"basic": []}], document["security"])
        self.assertEqual({"token", "basic"}, document["components"]["securitySchemes"].keys())
        for template, found in document["paths"].items():
            for method in found.keys() & set(METHODS):
                self.assertEqual(template in PUBLIC_PATHS, found[method].get("security") == [], template)

    def test_the_description_is_small(self):
        self.assertLess(len(self.client.simulate_get("/openapi.json").content), 64_000)


class TestFuzzed(ReadsCase):
    """Requests for each operation of the description; the same in each run."""

    def setUp(self):
        super().setUp()
        self.store(row(Kind.ALARM_HISTORY), kind=Kind.ALARM_HISTORY)

    def test_valid_requests_cause_no_server_error(self):
        self.assertLessEqual({200, 204}, self.fuzz(GenerationMode.POSITIVE))

    def test_invalid_requests_cause_no_server_error(self):
        self.assertLessEqual({400, 422}, self.fuzz(GenerationMode.NEGATIVE))

    def fuzz(self, mode):
        schema = schemathesis.openapi.from_wsgi("/openapi.json", self.client.app)
        found = [each.ok() for each in schema.get_all_operations()]
        self.assertGreater(len(found), 15)
        return set().union(*(self.ask(each, mode, EXAMPLES // len(found)) for each in found))

    def ask(self, described, mode, examples):
        """Return the statuses of the responses."""
        statuses = set()

        @hypothesis_settings(FUZZED, max_examples=examples)
        @given(described.as_strategy(generation_mode=mode))
        def ask_once(case):
            response = case.call()
            try:
                case.validate_response(response, checks=CHECKS)
            except FailureGroup as failures:  # not a subclass of `Exception`
                self.fail(str(failures))
            self.assertLess(response.status_code, 500, response.text)
            statuses.add(response.status_code)

        with contextlib.suppress(Unsatisfiable):  # without parameters no request is invalid
            ask_once()
        return statuses
