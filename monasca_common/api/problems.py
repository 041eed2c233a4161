# SPDX-License-Identifier: Apache-2.0
"""What the API answers when it does not do what was asked: one body for every error.

``{"error": {"code": 422, "title": "...", "message": "..."}}`` is the shape whose message the command-line client
prints; of any other it shows nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import falcon
import msgspec


class Problem(falcon.HTTPError):
    """Raise it anywhere in a request. ``message`` names the input, the rule and the remedy.

    ``details`` are further members of the body's ``error`` object; ``headers`` go into the answer.
    """

    def __init__(
        self,
        status: int,
        title: str,
        message: str,
        *,
        headers: Mapping[str, str] | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(
            falcon.code_to_http_status(status),
            title=title,
            description=message,
            headers=dict(headers or {}),
            code=status,
        )
        self.details = dict(details or {})

    def to_dict(self, obj_type: Any = dict) -> Any:
        return _body(self, obj_type)


def unprocessable(message: str, **more: Any) -> Problem:
    return Problem(422, "Unprocessable Entity", message, **more)


def bad_request(message: str, **more: Any) -> Problem:
    return Problem(400, "Bad Request", message, **more)


def conflict(message: str, **more: Any) -> Problem:
    return Problem(409, "Conflict", message, **more)


def not_found(message: str, **more: Any) -> Problem:
    return Problem(404, "Not Found", message, **more)


def unavailable(message: str, *, retry_after_seconds: int, **more: Any) -> Problem:
    return Problem(503, "Service Unavailable", message, headers={"Retry-After": str(retry_after_seconds)}, **more)


def serialize_error(_request: falcon.Request, response: falcon.Response, error: falcon.HTTPError) -> None:
    """For `falcon.App.set_error_serializer`: Falcon's own errors (no such path, no such method) in the same shape."""
    response.data = msgspec.json.encode(_body(error, dict))
    response.content_type = falcon.MEDIA_JSON


def _body(error: falcon.HTTPError, obj_type: Any) -> Any:
    code = error.status_code
    title = error.title or ""
    if title == falcon.code_to_http_status(code):  # Falcon's default, "404 Not Found": the code is there already
        title = HTTPStatus(code).phrase
    inner = {"code": code, "title": title, "message": error.description or title}
    body = obj_type()
    body["error"] = {**inner, **getattr(error, "details", {})}
    return body
