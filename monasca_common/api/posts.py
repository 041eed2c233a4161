# SPDX-License-Identifier: Apache-2.0
"""What is posted: read, parsed, checked, published; answered once Kafka has all of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import falcon

from monasca_common.api.body import read_json_body
from monasca_common.api.idempotency import idempotency_key, message_ids
from monasca_common.api.options import ApiSettings
from monasca_common.api.problems import Problem, bad_request, unprocessable
from monasca_common.api.publishing import Bulk, Publishing
from monasca_common.api.series_limit import SeriesLimit
from monasca_common.kafka import Record
from monasca_common.kafka.dead_letter import ERROR_CLASS, ERROR_TEXT, FIRST_FAILURE, ORIGIN_TOPIC
from monasca_common.models import event, log, metric
from monasca_common.models.errors import InvalidEnvelope, NotJson, Violation
from monasca_common.models.post import ParsedPost

LOGS_PATH = "/v2.0/logs"
EVENTS_PATH = "/v1.0/events"
REJECTED_HEADER = "Monasca-Rejected"

_TOLD_IN_THE_MESSAGE = 20
_MAX_ERROR_TEXT = 1000


@dataclass(frozen=True, slots=True)
class Desk:
    """What every kind of post needs. ``now``: seconds since the epoch."""

    settings: ApiSettings
    publishing: Publishing
    series_limit: SeriesLimit | None = None
    now: Callable[[], float] = field(default=time.time)


class Metrics:
    """``POST /v2.0/metrics``: one metric or a list; 204."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    def on_post(self, request: falcon.Request, response: falcon.Response) -> None:
        desk, settings = self._desk, self._desk.settings
        tenant: str = request.context.tenant
        key = idempotency_key(request)
        post = _parsed(metric.parse_post, read_json_body(request, settings))
        if post.violations and settings.invalid_metrics == "refuse":
            raise _refusal(post.violations)
        if desk.series_limit is not None:
            desk.series_limit.admit(tenant, post.valid, post.indices)
        values = metric.envelopes(post.valid, tenant, settings.region, int(desk.now()))
        bulk = Bulk(settings.metrics_topic, _with_ids(values, post, request, tenant, key))
        if post.rejected:
            rejected = self._dead_letters(post, request, tenant, key)
            desk.publishing.publish(bulk, rejected, keyed=key is not None)
            response.set_header(REJECTED_HEADER, str(len(post.rejected)))
        else:
            desk.publishing.publish(bulk, keyed=key is not None)
        response.status = falcon.HTTP_204

    def _dead_letters(self, post: ParsedPost, request: falcon.Request, tenant: str, key: str | None) -> Bulk:
        """The invalid ones as they came, in envelopes, so that they can be put right and sent again."""
        settings, now = self._desk.settings, self._desk.now()
        elements = [rejected.raw for rejected in post.rejected]
        ids: Sequence[bytes | None] = [None] * len(elements)
        if key is not None:
            ids = message_ids(tenant, request.path, key, elements, [rejected.index for rejected in post.rejected])
        return Bulk(
            settings.rejected_metrics_topic,
            [
                Record(
                    metric.envelope(rejected.raw, tenant, settings.region, int(now)),
                    headers=(
                        (ORIGIN_TOPIC, settings.metrics_topic.encode()),
                        (ERROR_CLASS, b"monasca_common.models.errors.InvalidEnvelope"),
                        (ERROR_TEXT, _told(rejected.violations)[:_MAX_ERROR_TEXT].encode(errors="backslashreplace")),
                        (FIRST_FAILURE, b"%d" % int(now * 1000)),
                    ),
                    message_id=own_id,
                )
                for rejected, own_id in zip(post.rejected, ids, strict=True)
            ],
        )


class Logs:
    """``POST /v2.0/logs``: ``{"dimensions": {}, "logs": [...]}``; 204."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    def on_post(self, request: falcon.Request, response: falcon.Response) -> None:
        settings = self._desk.settings
        tenant: str = request.context.tenant
        key = idempotency_key(request)
        post = _parsed(log.parse_post, read_json_body(request, settings, type_required=True))
        if post.violations:
            raise _refusal(post.violations)
        created = int(self._desk.now())
        values = [log.envelope(text, tenant, settings.region, created) for text in post.valid]
        bulk = Bulk(settings.logs_topic, _with_ids(values, post, request, tenant, key))
        self._desk.publishing.publish(bulk, keyed=key is not None)
        response.status = falcon.HTTP_204


class Events:
    """``POST /v1.0/events``: ``{"timestamp": ..., "events": [...]}``; 200."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    def on_post(self, request: falcon.Request, response: falcon.Response) -> None:
        settings = self._desk.settings
        tenant: str = request.context.tenant
        key = idempotency_key(request)
        body = read_json_body(request, settings)
        if not body:
            raise unprocessable("the body is empty: send a timestamp and events")
        post = _parsed(event.parse_post, body)
        if post.violations:
            raise _refusal(post.violations)
        created = int(self._desk.now())
        values = [event.envelope(text, tenant, settings.region, created) for text in post.valid]
        bulk = Bulk(settings.events_topic, _with_ids(values, post, request, tenant, key))
        self._desk.publishing.publish(bulk, keyed=key is not None)
        response.status = falcon.HTTP_200


def _with_ids(
    values: list[bytes], post: ParsedPost, request: falcon.Request, tenant: str, key: str | None
) -> Sequence[bytes | Record]:
    """Bare values, for which the producer makes ids (its fast path), or records with the ids that the key makes."""
    if key is None:
        return values
    ids = message_ids(tenant, request.path, key, post.valid, post.indices)
    return [Record(value, message_id=own_id) for value, own_id in zip(values, ids, strict=True)]


def _parsed(parse: Callable[[bytes], ParsedPost], body: bytes) -> ParsedPost:
    if not body:
        raise bad_request("the body is empty: send JSON")
    try:
        return parse(body)
    except NotJson as error:
        raise bad_request(f"the body is not JSON: {_told(error.violations)}") from None
    except InvalidEnvelope as error:
        raise _refusal(error.violations) from None


def _refusal(violations: Sequence[Violation]) -> Problem:
    told = [{"where": violation.where, "rule": violation.rule} for violation in violations]
    return unprocessable(
        f"nothing of the request was taken: {_told(violations)}",
        details={"violations": told},
    )


def _told(violations: Sequence[Violation]) -> str:
    text = "; ".join(map(str, violations[:_TOLD_IN_THE_MESSAGE]))
    more = len(violations) - _TOLD_IN_THE_MESSAGE
    return f"{text}; and {more} more" if more > 0 else text
