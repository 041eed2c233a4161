# SPDX-License-Identifier: Apache-2.0
"""``/v2.0/metrics``: metrics, their names, and the names and values of their dimensions."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import falcon

from monasca_common.api import paging
from monasca_common.api.body import read_json_body
from monasca_common.api.ingest import (
    PostContext,
    idempotency_key,
    message_ids,
    parsed,
    records,
    refusal,
    violations_text,
)
from monasca_common.api.publishing import TopicMessages
from monasca_common.api.query import Query
from monasca_common.kafka import Record, dead_letters
from monasca_common.models import metric
from monasca_common.models.post import ParsedPost, Rejected
from monasca_common.models.series import Series
from monasca_common.storage.base import Kind
from monasca_common.storage.reader import PageOf
from monasca_common.storage.sql.reader import SqlReader

PATH = "/v2.0/metrics"
REJECTED_HEADER = "Monasca-Rejected"
_MAX_ERROR_TEXT = 1000
_MAX_DEAD_LETTER_BYTES = 500_000  # below the default of Kafka's max.message.bytes, 1 MiB


def add_routes(app: falcon.App[Any, Any], posts: PostContext, reader: SqlReader) -> None:
    app.add_route(PATH, Metrics(posts, reader))
    app.add_route(f"{PATH}/names", MetricNames(reader))
    app.add_route(f"{PATH}/dimensions/names", DimensionNames(reader))
    app.add_route(f"{PATH}/dimensions/names/values", DimensionValues(reader))


class _List:
    def __init__(self, reader: SqlReader) -> None:
        self._reader = reader

    def _answer_names(
        self, request: falcon.Request, response: falcon.Response, field: str, names: Sequence[str], page: PageOf
    ) -> None:
        paging.answer_page(request, response, names, limit=page.limit, element=lambda name: {field: name}, offset=str)


class Metrics(_List):
    """``POST`` accepts one metric or a list (status 204); ``GET`` lists the series."""

    def __init__(self, posts: PostContext, reader: SqlReader) -> None:
        super().__init__(reader)
        self._posts = posts

    def on_post(self, request: falcon.Request, response: falcon.Response) -> None:
        posts, settings = self._posts, self._posts.settings
        tenant: str = request.context.tenant
        key = idempotency_key(request)
        created = posts.creation_time(key)
        post = parsed(metric.parse_post, read_json_body(request, settings), posts.rules(Kind.METRICS, created))
        if post.violations and settings.invalid_metrics == "refuse":
            raise refusal(post.violations)
        if posts.series_limit is not None:
            posts.series_limit.admit(tenant, post.valid, post.indices)
        values = metric.envelopes(post.valid, tenant, settings.region, created)
        bulks = [TopicMessages(settings.metrics_topic, records(posts.encoded("metrics", values), post, request, key))]
        if post.rejected:
            bulks.append(self._dead_letters(post, request, key, created))
        posts.publishing.publish(*bulks, keyed=key is not None)
        if post.rejected:
            response.set_header(REJECTED_HEADER, str(len(post.rejected)))
        response.status = falcon.HTTP_204

    def on_get(self, request: falcon.Request, response: falcon.Response) -> None:
        which, page = Query.of(request).series()
        with contextlib.closing(self._reader.iter_series(which, paging.one_more(page))) as found:
            paging.answer_page(
                request, response, found, limit=page.limit, element=_shown, offset=lambda series: series.id.hex()
            )

    def _dead_letters(
        self, post: ParsedPost, request: falcon.Request, key: str | None, created: float
    ) -> TopicMessages:
        """Return the invalid metrics in envelopes, unchanged unless very large, so that they can be corrected and
        replayed."""
        settings = self._posts.settings
        tenant: str = request.context.tenant
        elements = [rejected.raw for rejected in post.rejected]
        envelopes = metric.envelopes(elements, tenant, settings.region, created)
        ids: Sequence[bytes | None] = [None] * len(elements)
        if key is not None:
            ids = message_ids(tenant, request.path, key, elements, [rejected.index for rejected in post.rejected])
        letters = [
            Record(
                envelope,
                headers=(
                    (dead_letters.ORIGIN_TOPIC, settings.metrics_topic.encode()),
                    (dead_letters.ERROR_CLASS, b"monasca_common.models.errors.InvalidEnvelope"),
                    (dead_letters.ERROR_TEXT, _error_text(rejected)),
                    (dead_letters.FIRST_FAILURE, b"%d" % round(created * 1000)),
                ),
                message_id=own_id,
            )
            for rejected, envelope, own_id in zip(post.rejected, envelopes, ids, strict=True)
        ]
        for index, envelope in enumerate(envelopes):
            if len(envelope) > _MAX_DEAD_LETTER_BYTES:  # Kafka would refuse it, and the agent would repeat its batch
                letters[index] = dead_letters.shrink(letters[index], len(envelope), _MAX_DEAD_LETTER_BYTES)
        return TopicMessages(settings.rejected_metrics_topic, letters)


class MetricNames(_List):
    def on_get(self, request: falcon.Request, response: falcon.Response) -> None:
        which, page = Query.of(request).names()
        self._answer_names(request, response, "name", self._reader.names(which, paging.one_more(page)), page)


class DimensionNames(_List):
    def on_get(self, request: falcon.Request, response: falcon.Response) -> None:
        which, page = Query.of(request).names()
        names = self._reader.dimension_names(which, paging.one_more(page))
        self._answer_names(request, response, "dimension_name", names, page)


class DimensionValues(_List):
    def on_get(self, request: falcon.Request, response: falcon.Response) -> None:
        query = Query.of(request)
        key = query.needed("dimension_name")
        which, page = query.names()
        values = self._reader.dimension_values(which, key, paging.one_more(page))
        self._answer_names(request, response, "dimension_value", values, page)


def _shown(series: Series) -> dict[str, Any]:
    return {"id": series.id.hex(), "name": series.name, "dimensions": series.dimensions}


def _error_text(rejected: Rejected) -> bytes:
    return violations_text(rejected.violations)[:_MAX_ERROR_TEXT].encode(errors="backslashreplace")
