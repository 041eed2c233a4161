# SPDX-License-Identifier: Apache-2.0
"""``POST /v2.0/logs``: ``{"dimensions": {}, "logs": [...]}``; 204."""

from __future__ import annotations

import falcon

from monasca_common.api.body import read_json_body
from monasca_common.api.ingest import PostContext, idempotency_key, parsed, records, refusal
from monasca_common.api.publishing import TopicMessages
from monasca_common.models import log
from monasca_common.storage.base import Kind

PATH = "/v2.0/logs"


class Logs:
    def __init__(self, context: PostContext) -> None:
        self._context = context

    def on_post(self, request: falcon.Request, response: falcon.Response) -> None:
        settings = self._context.settings
        key = idempotency_key(request)
        created = self._context.creation_time(key)
        rules = self._context.rules(Kind.LOGS, created)
        post = parsed(log.parse_post, read_json_body(request, settings, type_required=True), rules)
        if post.violations:
            raise refusal(post.violations)
        values = log.envelopes(post.valid, request.context.tenant, settings.region, created)
        values = self._context.encoded("logs", values)
        bulk = TopicMessages(settings.logs_topic, records(values, post, request, key))
        self._context.publishing.publish(bulk, keyed=key is not None)
        response.status = falcon.HTTP_204
