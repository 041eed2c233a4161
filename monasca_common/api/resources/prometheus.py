# SPDX-License-Identifier: Apache-2.0
"""``POST /api/v1/write``: Prometheus' remote write 1.0; 204."""

from __future__ import annotations

import falcon

from monasca_common.api.body import read_body, snappy_decompressed
from monasca_common.api.ingest import PostContext, parsed, publish_samples, violations_text
from monasca_common.api.problems import bad_request, unsupported_media_type
from monasca_common.models import remote_write
from monasca_common.storage.base import Kind

_TYPE, _MESSAGE = "application/x-protobuf", "prometheus.WriteRequest"


class RemoteWrite:
    """Publishes all valid samples of a request, and then refuses the invalid ones with status 400, because Prometheus
    does not repeat a request that gets this status."""

    def __init__(self, posts: PostContext) -> None:
        self._posts = posts

    def on_post(self, request: falcon.Request, response: falcon.Response) -> None:
        posts = self._posts
        _check_type(request)
        body = snappy_decompressed(read_body(request.env, posts.settings), posts.settings)
        created = posts.creation_time(None)
        post = parsed(remote_write.parse, body, posts.rules(Kind.METRICS, created)) if body else None
        if post is not None and post.valid:
            publish_samples(posts, post, request, created)
        if post is not None and post.violations:
            refused = post.total - len(post.valid)
            raise bad_request(
                f"{refused} of {post.total} samples were refused; the others are stored: "
                f"{violations_text(post.violations)}",
                details={"delivered": len(post.valid), "rejected": refused},
            )
        response.status = falcon.HTTP_204


def _check_type(request: falcon.Request) -> None:
    given = request.env.get("CONTENT_TYPE") or ""
    media_type, parameters = falcon.parse_header(given)
    message = parameters.get("proto", _MESSAGE)
    if media_type.strip().lower() != _TYPE or message != _MESSAGE:
        raise unsupported_media_type(
            f"content type {given[:100]!r} is not supported: send {_TYPE};proto={_MESSAGE}, which is remote write 1.0 "
            "(protobuf_message of Prometheus' remote_write)"
        )
    encoding = request.env.get("HTTP_CONTENT_ENCODING", "").strip().lower()
    if encoding != "snappy":
        raise unsupported_media_type(
            f"content encoding {encoding[:40]!r} is not supported: send snappy", headers={"Accept-Encoding": "snappy"}
        )
