# SPDX-License-Identifier: Apache-2.0
"""``GET /openapi.json``: what the API takes and answers, made from its routes, its rules and its settings.

Each responder says of itself, by the decorator `operation`, what nothing else says: its parameters and its answer.
"""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import falcon
import msgspec

from monasca_common.api.paging import PAGE_LIMIT
from monasca_common.api.query import DEFAULT_PERIOD_SECONDS, MAX_PERIOD_SECONDS
from monasca_common.api.settings import ApiSettings
from monasca_common.models.limits import LONGEST_TEXT, MOST_META_ENTRIES, POSTED, TextRule
from monasca_common.storage.reader import FUNCTIONS

Schema = Mapping[str, Any]
Responder = TypeVar("Responder", bound=Callable[..., None])

PATH = "/openapi.json"
_METHODS = ("get", "post", "put", "patch", "delete")
_OPERATION = "operation"
_JSON = "application/json"


@dataclass(frozen=True, slots=True)
class Parameter:
    """Of the query, unless ``place`` says otherwise."""

    name: str
    text: str
    schema: Schema
    required: bool = False
    place: str = "query"

    def described(self) -> Schema:
        return {
            "name": self.name,
            "in": self.place,
            "description": self.text,
            "required": self.required,
            "schema": self.schema,
        }


@dataclass(frozen=True, slots=True)
class Operation:
    """``status``: of success; ``returns``: the schema of its body, ``None`` for none; ``also``: those of other statuses
    that are no errors. ``body``: of the request's."""

    summary: str
    parameters: tuple[Parameter, ...]
    status: int
    returns: Schema | None
    body: Schema | None
    media_type: str
    also: Mapping[int, Schema]


def operation(
    summary: str,
    *parameters: Parameter,
    status: int = 200,
    returns: Schema | None = None,
    body: Schema | None = None,
    media_type: str = _JSON,
    also: Mapping[int, Schema] | None = None,
) -> Callable[[Responder], Responder]:
    """Describe a responder."""

    def describe(responder: Responder) -> Responder:
        setattr(responder, _OPERATION, Operation(summary, parameters, status, returns, body, media_type, also or {}))
        return responder

    return describe


def text(rule: TextRule) -> Schema:
    """A string that keeps a rule."""
    return {"type": "string", "minLength": rule.least, "maxLength": rule.most, "pattern": _ecma(rule)}


def _ecma(rule: TextRule) -> str:
    start = f"(?!{re.escape(rule.prefix)})" if rule.prefix else ""
    forbidden = "".join(f"\\{character}" if character in '\\"' else character for character in rule.forbidden)
    return f"^{start}[^\\u0000{forbidden}]*$"


def of(**members: Schema) -> Schema:
    """An object that has these members, and may have others."""
    return {"type": "object", "properties": members, "required": list(members)}


def list_of(element: Schema) -> Schema:
    """A page of a list."""
    return of(
        links={"type": "array", "items": of(rel=STRING, href=STRING)}, elements={"type": "array", "items": element}
    )


def sort_by(fields: Iterable[str]) -> Parameter:
    return Parameter("sort_by", f"Some of {', '.join(fields)}, each with asc or desc, separated by commas", STRING)


STRING: Schema = {"type": "string"}
NUMBER: Schema = {"type": "number"}
INTEGER: Schema = {"type": "integer"}
OBJECT: Schema = {"type": "object"}
TIME: Schema = {"type": "string", "examples": ["2026-01-31T23:59:59.123Z"]}
DIMENSIONS: Schema = {"type": "object", "propertyNames": text(POSTED.key), "additionalProperties": text(POSTED.value)}
NULL: Schema = {"type": "null"}
ARRAY: Schema = {"type": "array"}
BOOLEAN: Schema = {"type": "boolean"}

_NAME: Schema = {"type": "string", "minLength": 1, "maxLength": LONGEST_TEXT}
TIMES = (
    Parameter("start_time", "Only what is from this time on", TIME),
    Parameter("end_time", "Only what is up to this time; after start_time", TIME),
)
LIMIT = Parameter(
    "limit",
    "At most so many elements; more than the default are not given",
    {"type": "integer", "minimum": 1, "default": PAGE_LIMIT},
)
OFFSET = Parameter("offset", "Where a page begins: taken from the link named next of the one before", STRING)
ROW_OFFSET = Parameter("offset", "How many elements to skip", {"type": "integer", "minimum": 0})
SEVERITY = Parameter("severity", "Some of LOW, MEDIUM, HIGH and CRITICAL, separated by |", STRING)
FILTER = Parameter("dimensions", "key:value, key:value|value or key alone, separated by commas", STRING)
#: What lists of series and of names have in common.
SELECTION = (FILTER, *TIMES, LIMIT, OFFSET)
NAME = Parameter("name", "The metric's name", _NAME)
METRIC_NAME = Parameter("metric_name", "The metric's name", _NAME)
DIMENSION_NAME = Parameter("dimension_name", "The key of the dimension", _NAME, required=True)
GROUP_BY = Parameter("group_by", "Keys of dimensions, separated by commas, or *", STRING)
#: What measurements and statistics have in common.
ROWS = (
    Parameter("name", "The metric's name", _NAME, required=True),
    Parameter("start_time", "From this time on", TIME, required=True),
    TIMES[1],
    FILTER,
    LIMIT,
    OFFSET,
    Parameter("merge_metrics", "Several series as one", {"type": "string", "enum": ["true", "false"]}),
    GROUP_BY,
)
IDEMPOTENCY_KEY = Parameter(
    "Idempotency-Key",
    "The same for repeats of one request, whose messages are then stored once",
    {"type": "string", "pattern": "^[!-~]{1,255}$"},
    place="header",
)
STATISTICS = Parameter("statistics", f"Some of {', '.join(FUNCTIONS)}, separated by commas", STRING, required=True)
PERIOD = Parameter(
    "period",
    "Seconds",
    {"type": "integer", "minimum": 1, "maximum": MAX_PERIOD_SECONDS, "default": DEFAULT_PERIOD_SECONDS},
)
PART = Parameter("part", "Only this part", {"type": "string", "enum": ["producer", "storage"]})
TENANT_ID = Parameter("tenant_id", "Another project, for those who may act for it", text(TextRule()))
PROJECT_ID = Parameter("project_id", "The same as tenant_id", text(TextRule()))

_ROW_TIME: Schema = {"oneOf": [TIME, {"type": "number", "description": "Milliseconds since the epoch"}]}
_METRIC: Schema = {
    "type": "object",
    "required": ["name", "timestamp", "value"],
    "properties": {
        "name": text(POSTED.name),
        "dimensions": DIMENSIONS,
        "timestamp": {"type": "number", "description": "Milliseconds since the epoch"},
        "value": NUMBER,
        "value_meta": {"type": ["object", "null"], "maxProperties": MOST_META_ENTRIES, "additionalProperties": STRING},
    },
}
METRICS: Schema = {"oneOf": [_METRIC, {"type": "array", "items": _METRIC}]}
_LOG: Schema = {
    "type": "object",
    "required": ["message"],
    "properties": {"message": STRING, "dimensions": DIMENSIONS, "timestamp": _ROW_TIME},
}
LOGS: Schema = {
    "type": "object",
    "required": ["logs"],
    "properties": {"dimensions": DIMENSIONS, "logs": {"type": "array", "items": _LOG, "minItems": 1}},
}
_EVENT: Schema = {
    "type": "object",
    "required": ["event"],
    "properties": {
        "dimensions": DIMENSIONS,
        "event": {
            "type": "object",
            "required": ["event_type"],
            "properties": {"event_type": text(TextRule()), "payload": OBJECT, "timestamp": _ROW_TIME},
        },
    },
}
EVENTS: Schema = {
    "type": "object",
    "required": ["events"],
    "properties": {"timestamp": _ROW_TIME, "events": {"type": "array", "items": _EVENT, "minItems": 1}},
}
_ERROR = of(error=of(code=INTEGER, title=STRING, message=STRING))


class OpenApi:
    """``routes``: each resource by its template. ``public``: the paths that need no token."""

    def __init__(self, routes: Mapping[str, object], settings: ApiSettings, public: frozenset[str]) -> None:
        self._data = msgspec.json.encode(_document(routes, settings, public))

    @operation("This description", returns=OBJECT)
    def on_get(self, _request: falcon.Request, response: falcon.Response) -> None:
        response.content_type = falcon.MEDIA_JSON
        response.data = self._data


def operations(resource: object) -> dict[str, Operation | None]:
    """By method; ``None``: it is not described."""
    responders = {method: getattr(resource, f"on_{method}", None) for method in _METHODS}
    return {method: getattr(each, _OPERATION, None) for method, each in responders.items() if each is not None}


def _document(routes: Mapping[str, object], settings: ApiSettings, public: frozenset[str]) -> Schema:
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {
            "title": "Monasca API",
            "version": importlib.metadata.version("monasca-common"),
            "description": f"Bodies have at most {settings.max_body_bytes} bytes, compressed by gzip or not. Every "
            "error has the body of the answer named default, and every answer an id in X-Openstack-Request-Id.",
        },
        "paths": {
            template: _path(template, resource, settings, public=template in public)
            for template, resource in sorted(routes.items())
            if template == "/" or not template.endswith("/")
        },
        "components": {"schemas": {"Error": _ERROR}},
    }
    if settings.auth_strategy == "keystone":
        document["components"]["securitySchemes"] = {
            "token": {"type": "apiKey", "in": "header", "name": "X-Auth-Token"}
        }
    return document


def _path(template: str, resource: object, settings: ApiSettings, *, public: bool) -> Schema:
    path: dict[str, Any] = {
        method: _operation(each, settings, public=public)
        for method, each in operations(resource).items()
        if each is not None
    }
    if names := re.findall(r"{(\w+)}", template):
        schema = {"type": "string", "minLength": 1}
        path["parameters"] = [{"name": name, "in": "path", "required": True, "schema": schema} for name in names]
    return path


def _operation(described: Operation, settings: ApiSettings, *, public: bool) -> Schema:
    parameters = described.parameters if public else (*described.parameters, TENANT_ID)
    responses = {str(status): _answer("It is not so", _JSON, schema) for status, schema in described.also.items()}
    found: dict[str, Any] = {
        "summary": described.summary,
        "parameters": [each.described() for each in parameters],
        "responses": {
            str(described.status): _answer("It is done", described.media_type, described.returns),
            **responses,
            "default": _answer("It is not done", _JSON, {"$ref": "#/components/schemas/Error"}),
        },
    }
    if described.body is not None:
        found["requestBody"] = {"required": True, "content": {_JSON: {"schema": described.body}}}
    if not public and settings.auth_strategy == "keystone":
        found["security"] = [{"token": []}]
    return found


def _answer(text: str, media_type: str, schema: Schema | None) -> Schema:
    return (
        {"description": text} if schema is None else {"description": text, "content": {media_type: {"schema": schema}}}
    )
