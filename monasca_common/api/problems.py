# SPDX-License-Identifier: Apache-2.0
"""Error responses of the API; all of their bodies have the same structure.

``{"error": {"code": 422, "title": "...", "message": "..."}}`` is the only structure whose message the command-line
client prints.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from http import HTTPStatus
from typing import Any

import falcon
import msgspec

from monasca_common.api.log_fields import Reason, note_reason, note_undelivered
from monasca_common.storage.errors import (
    LockTimeout,
    NotSupported,
    QueryTimeout,
    QueryTooLarge,
    SchemaMismatch,
    StorageError,
    StorageUnavailable,
)

LOG = logging.getLogger(__name__)
_DATABASE_RETRY_AFTER_SECONDS = 5


class Problem(falcon.HTTPError):
    """An error response. ``message`` names the input, the rule and the remedy.

    ``details``: additional members of the body's ``error`` object. ``headers``: the headers of the response.
    ``reason``: the label value in metrics, if the status does not determine it.
    """

    def __init__(
        self,
        status: int,
        title: str,
        message: str,
        *,
        headers: Mapping[str, str] | None = None,
        details: Mapping[str, Any] | None = None,
        reason: Reason | None = None,
    ) -> None:
        super().__init__(
            falcon.code_to_http_status(status),
            title=title,
            description=message,
            headers=dict(headers or {}),
            code=status,
        )
        self.details = dict(details or {})
        self.reason = reason


bad_request = partial(Problem, 400, "Bad Request")
not_found = partial(Problem, 404, "Not Found")
conflict = partial(Problem, 409, "Conflict")
too_large = partial(Problem, 413, "Content Too Large")
unsupported_media_type = partial(Problem, 415, "Unsupported Media Type")
unprocessable = partial(Problem, 422, "Unprocessable Entity")


def unavailable(message: str, *, retry_after_seconds: int, reason: Reason, **more: Any) -> Problem:
    headers = {"Retry-After": str(retry_after_seconds)}
    return Problem(503, "Service Unavailable", message, headers=headers, reason=reason, **more)


def of_storage(error: StorageError) -> Problem:
    """Return the response to an error: 503 if it is temporary, 422 if the query is too large, otherwise 501 or 500."""
    match error:
        case LockTimeout():
            return _database_unavailable(
                "another transaction, such as an evaluation of alarms, has locked the rows: repeat the request later"
            )
        case StorageUnavailable() | SchemaMismatch():
            LOG.warning("a read failed: %s", error)
            return _database_unavailable("the database is unavailable: repeat the request later")
        case QueryTimeout():
            return _database_unavailable(str(error))
        case QueryTooLarge():
            return unprocessable(str(error))
        case NotSupported():
            return Problem(501, "Not Implemented", "this API has no database that supports this request")
    LOG.error("a read failed", exc_info=error)
    return Problem(500, "Internal Server Error", "the read failed; the log of the API contains the reason")


def _database_unavailable(message: str) -> Problem:
    return unavailable(message, retry_after_seconds=_DATABASE_RETRY_AFTER_SECONDS, reason=Reason.DATABASE)


def serialize_error(request: falcon.Request, response: falcon.Response, error: falcon.HTTPError) -> None:
    """Serialize `Problem`, and also Falcon's own errors (unknown path or method), in this structure."""
    code, title, details = error.status_code, error.title or "", getattr(error, "details", {})
    note_undelivered(request.env, details)
    if (reason := getattr(error, "reason", None)) is not None:
        note_reason(request.env, reason)
    if title == falcon.code_to_http_status(code):  # Falcon's default title, "404 Not Found", repeats the code
        title = HTTPStatus(code).phrase
    response.data = msgspec.json.encode(error_body(code, title, error.description or title, **details))
    response.content_type = falcon.MEDIA_JSON


def error_body(code: int, title: str, message: str, **details: Any) -> dict[str, Any]:
    """Return the body of an error. ``details``: additional members of its ``error`` object."""
    return {"error": {"code": code, "title": title, "message": message, **details}}


def failed(environ: Mapping[str, Any], error: Exception) -> bytes:
    """Log an unexpected exception, and return the body of its response (500)."""
    LOG.error("%s %s failed", environ["REQUEST_METHOD"], environ.get("PATH_INFO", ""), exc_info=error)
    message = "the request failed; the log of the API contains the reason"
    return msgspec.json.encode(error_body(500, HTTPStatus(500).phrase, message))
