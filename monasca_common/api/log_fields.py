# SPDX-License-Identifier: Apache-2.0
"""Fields of the access log and labels of ``/metrics``; layers of the application set them in a request's environ."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, NamedTuple

from oslo_context.context import get_current

TENANT = "monasca.tenant"
COUNTS = "monasca.counts"
REASON = "monasca.reason"


class MessageCounts(NamedTuple):
    """The number of messages of a post, by outcome. ``rejected``: invalid messages, which are refused or published as
    dead letters."""

    delivered: int = 0
    failed: int = 0
    unknown: int = 0
    rejected: int = 0


NO_MESSAGES = MessageCounts()


class Reason(StrEnum):
    """The reason why a request was refused."""

    BAD_REQUEST = "bad_request"
    UNAUTHORIZED = "unauthorized"
    FORBIDDEN = "forbidden"
    NOT_FOUND = "not_found"
    BODY_TOO_SLOW = "body_too_slow"
    CONFLICT = "conflict"
    TOO_LARGE = "too_large"
    MEDIA_TYPE = "media_type"
    INVALID = "invalid"
    SERIES_LIMIT = "series_limit"
    NOT_SUPPORTED = "not_supported"
    FAILED = "failed"
    # Reasons for status 503:
    BUSY = "busy"
    STOPPING = "stopping"
    KAFKA = "kafka"
    DATABASE = "database"
    KEYSTONE = "keystone"
    REGISTRY = "registry"
    UNAVAILABLE = "unavailable"
    OTHER = "other"


_OF_STATUS = {
    400: Reason.BAD_REQUEST,
    401: Reason.UNAUTHORIZED,
    403: Reason.FORBIDDEN,
    404: Reason.NOT_FOUND,
    408: Reason.BODY_TOO_SLOW,
    409: Reason.CONFLICT,
    413: Reason.TOO_LARGE,
    415: Reason.MEDIA_TYPE,
    422: Reason.INVALID,
    429: Reason.SERIES_LIMIT,
    500: Reason.FAILED,
    501: Reason.NOT_SUPPORTED,
    503: Reason.UNAVAILABLE,
}


def reason_of(environ: dict[str, Any], status: int) -> str:
    """Return the reason for refusing a request, or an empty string if it was not refused."""
    if status < 400:
        return ""
    return environ.get(REASON) or _OF_STATUS.get(status, Reason.OTHER)


def note_tenant(environ: dict[str, Any], tenant: str) -> None:
    """Set the tenant for the access log, and for all log lines until the end of the request."""
    environ[TENANT] = tenant
    context = get_current()
    if context is not None:
        context.project_id = tenant


def note_delivered(environ: dict[str, Any], delivered: int, rejected: int) -> None:
    environ[COUNTS] = MessageCounts(delivered, rejected=rejected)


def note_undelivered(environ: dict[str, Any], details: Mapping[str, Any]) -> None:
    """Set the counts from the ``details`` of an error's body, if it contains counts."""
    counts = MessageCounts(*(details.get(name, 0) for name in MessageCounts._fields))
    environ[COUNTS] = counts if any(counts) else NO_MESSAGES


def note_reason(environ: dict[str, Any], reason: Reason) -> None:
    """Set the reason, which is needed only if the status does not determine it."""
    environ[REASON] = reason
