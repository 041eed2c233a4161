# SPDX-License-Identifier: Apache-2.0
"""``POST /v1/metrics`` and ``/v1/logs`` of OTLP/HTTP, in protobuf or JSON. Needs the extra ``[otlp]``.

Status 200 means that Kafka has acknowledged all items except those that ``partial_success`` counts as rejected.
"""

from __future__ import annotations

import threading
from contextlib import nullcontext
from typing import Any

import falcon
from google.protobuf.json_format import MessageToJson
from google.protobuf.message import Message
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2

from monasca_common.api.body import read_typed_body
from monasca_common.api.ingest import PostContext, idempotency_key, publish_samples, records, violations_text
from monasca_common.api.limits import OTLP_LOGS, OTLP_METRICS
from monasca_common.api.log_fields import note_delivered
from monasca_common.api.problems import bad_request, too_large
from monasca_common.api.publishing import TopicMessages
from monasca_common.models import log
from monasca_common.models.errors import InvalidEnvelope, Violation
from monasca_common.models.otlp.logs import parse_logs
from monasca_common.models.otlp.metrics import add_samples
from monasca_common.models.otlp.requests import from_json, from_protobuf
from monasca_common.models.post import ParsedPost, PostRules
from monasca_common.models.samples import Samples
from monasca_common.storage.base import Kind

_PROTOBUF = "application/x-protobuf"
# One large body is converted at a time, because the messages of a hostile body can be a hundred times its size, and the
# GIL prevents concurrent conversions anyway. Small bodies do not wait, because a conversion can take seconds.
_CONVERSION = threading.Lock()
_SMALL_BYTES = 16 * 1024


def add_routes(app: falcon.App[Any, Any], posts: PostContext) -> None:
    app.add_route(OTLP_METRICS, ExportMetrics(posts))
    app.add_route(OTLP_LOGS, ExportLogs(posts))


class _Export:
    """The resource of one signal. The class attributes describe the signal's messages in OTLP."""

    _kind: Kind
    _request: type[Message]
    _response: type[Message]
    _rejected: str  # the field with the number of refused items

    def __init__(self, posts: PostContext) -> None:
        self._posts = posts

    def on_post(self, request: falcon.Request, response: falcon.Response) -> None:
        posts, settings = self._posts, self._posts.settings
        key = idempotency_key(request)
        created = posts.creation_time(key)
        media_type, body = read_typed_body(request, settings, (_PROTOBUF, falcon.MEDIA_JSON))
        try:
            with _CONVERSION if len(body) > _SMALL_BYTES else nullcontext():
                read = from_protobuf if media_type == _PROTOBUF else from_json
                post = self._parse(read(body, self._request()), posts.rules(self._kind, created))
        except InvalidEnvelope as error:
            problem = too_large if any(violation.too_large for violation in error.violations) else bad_request
            raise problem(f"the body {error}") from None
        large = self._publish(post, request, key, created) if post.valid else []
        delivered = len(post.valid) - len(large)
        refused, violations = post.total - delivered, (*post.violations, *large)
        note_delivered(request.env, delivered, refused)
        answer = self._response()
        if refused:
            setattr(answer.partial_success, self._rejected, refused)
            answer.partial_success.error_message = f"{refused} items were refused: {violations_text(violations)}"
        response.content_type = media_type
        response.data = answer.SerializeToString() if media_type == _PROTOBUF else MessageToJson(answer).encode()

    def _parse(self, message: Any, rules: PostRules) -> ParsedPost:
        raise NotImplementedError

    def _publish(self, post: ParsedPost, request: falcon.Request, key: str | None, created: float) -> list[Violation]:
        raise NotImplementedError


class ExportMetrics(_Export):
    _kind = Kind.METRICS
    _request = metrics_service_pb2.ExportMetricsServiceRequest
    _response = metrics_service_pb2.ExportMetricsServiceResponse
    _rejected = "rejected_data_points"

    def _parse(self, message: Any, rules: PostRules) -> ParsedPost:
        samples = Samples(rules)
        add_samples(message, frozenset(self._posts.settings.otlp_attributes), samples)
        return samples.post()

    def _publish(self, post: ParsedPost, request: falcon.Request, _key: str | None, created: float) -> list[Violation]:
        return publish_samples(self._posts, post, request.context.tenant, created)


class ExportLogs(_Export):
    _kind = Kind.LOGS
    _request = logs_service_pb2.ExportLogsServiceRequest
    _response = logs_service_pb2.ExportLogsServiceResponse
    _rejected = "rejected_log_records"

    def _parse(self, message: Any, rules: PostRules) -> ParsedPost:
        return parse_logs(message, frozenset(self._posts.settings.otlp_attributes), rules)

    def _publish(self, post: ParsedPost, request: falcon.Request, key: str | None, created: float) -> list[Violation]:
        """Publish logs; derive ids only from an Idempotency-Key, because without it equal logs can be distinct."""
        posts, settings = self._posts, self._posts.settings
        values = log.envelopes(post.valid, request.context.tenant, settings.region, created)
        bulk = TopicMessages(settings.logs_topic, records(posts.encoded("logs", values), post, request, key))
        return posts.publishing.publish_fitting(bulk, post.indices, keyed=key is not None)
