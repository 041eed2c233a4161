# SPDX-License-Identifier: Apache-2.0
"""``POST /api/v1/write``: Prometheus' remote write 1.0 and 2.0; 204."""

from __future__ import annotations

import falcon

from monasca_common.api.body import read_body, snappy_decompressed
from monasca_common.api.ingest import PostContext, parsed, publish_samples, violations_text
from monasca_common.api.log_fields import note_delivered
from monasca_common.api.problems import bad_request, unsupported_media_type
from monasca_common.models import remote_write, remote_write_v2
from monasca_common.storage.base import Kind

_TYPE = "application/x-protobuf"
_MESSAGE, _MESSAGE_2 = "prometheus.WriteRequest", "io.prometheus.write.v2.Request"
_PARSERS = {_MESSAGE: remote_write.parse, _MESSAGE_2: remote_write_v2.parse}
_WRITTEN = "X-Prometheus-Remote-Write-{}-Written"


class RemoteWrite:
    """Publishes all valid samples of a request, and then refuses the invalid ones with status 400, because Prometheus
    does not repeat a request that gets this status."""

    def __init__(self, posts: PostContext) -> None:
        self._posts = posts

    def on_post(self, request: falcon.Request, response: falcon.Response) -> None:
        posts = self._posts
        message = _checked_message(request)
        body = snappy_decompressed(read_body(request.env, posts.settings), posts.settings)
        created = posts.creation_time(None)
        post = parsed(_PARSERS[message], body, posts.rules(Kind.METRICS, created)) if body else remote_write.parse(body)
        large = publish_samples(posts, post, request.context.tenant, created) if post.valid else []
        delivered = len(post.valid) - len(large)
        refused, violations = post.total - delivered, (*post.violations, *large)
        counts = {"Samples": delivered, "Histograms": 0, "Exemplars": 0} if message == _MESSAGE_2 else {}
        written = {_WRITTEN.format(kind): str(count) for kind, count in counts.items()}
        if violations:
            raise bad_request(
                f"{refused} of {post.total} samples were refused; the others are stored: {violations_text(violations)}",
                headers=written,
                details={"delivered": delivered, "rejected": refused},
            )
        note_delivered(request.env, delivered, 0)
        response.set_headers(written)
        response.status = falcon.HTTP_204


def _checked_message(request: falcon.Request) -> str:
    """Return the name of the request's message. Raises `Problem`: 415."""
    given = request.env.get("CONTENT_TYPE") or ""
    media_type, parameters = falcon.parse_header(given)
    message = parameters.get("proto", _MESSAGE)
    if media_type.strip().lower() != _TYPE or message not in _PARSERS:
        raise unsupported_media_type(
            f"content type {given[:100]!r} is not supported: send {_TYPE};proto={_MESSAGE} or {_TYPE};proto="
            f"{_MESSAGE_2} (protobuf_message of Prometheus' remote_write)"
        )
    encoding = request.env.get("HTTP_CONTENT_ENCODING", "").strip().lower()
    if encoding != "snappy":
        raise unsupported_media_type(
            f"content encoding {encoding[:40]!r} is not supported: send snappy", headers={"Accept-Encoding": "snappy"}
        )
    return message
