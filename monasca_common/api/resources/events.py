# SPDX-License-Identifier: Apache-2.0
"""``POST /v1.0/events``: ``{"timestamp": ..., "events": [...]}``; 200."""

from __future__ import annotations

import falcon

from monasca_common.api.body import read_json_body
from monasca_common.api.ingest import PostContext, idempotency_key, parsed, records, refusal
from monasca_common.api.problems import unprocessable
from monasca_common.api.publishing import TopicMessages
from monasca_common.models import event
from monasca_common.storage.base import Kind

PATH = "/v1.0/events"


class Events:
    def __init__(self, context: PostContext) -> None:
        self._context = context

    def on_post(self, request: falcon.Request, response: falcon.Response) -> None:
        settings = self._context.settings
        key = idempotency_key(request)
        body = read_json_body(request, settings)
        if not body:
            raise unprocessable("the body is empty: send a timestamp and events")
        created = self._context.creation_time(key)
        post = parsed(event.parse_post, body, self._context.rules(Kind.EVENTS, created))
        if post.violations:
            raise refusal(post.violations)
        values = event.envelopes(post.valid, request.context.tenant, settings.region, created)
        values = self._context.encoded("events", values)
        bulk = TopicMessages(settings.events_topic, records(values, post, request, key))
        self._context.publishing.publish(bulk, keyed=key is not None)
        response.status = falcon.HTTP_200
