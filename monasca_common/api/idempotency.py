# SPDX-License-Identifier: Apache-2.0
"""``Idempotency-Key``: ids that a repeated request makes again, at any worker, at any time.

Nothing is remembered. A reader that keys on the message id takes each message once however often it was sent, and a
repeat that comes while the first is on its way attaches to it in the producer, since the id is the same.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence

import falcon

from monasca_common.api.problems import bad_request

HEADER = "Idempotency-Key"
_KEY = re.compile(r"[\x21-\x7e]{1,255}")


def idempotency_key(request: falcon.Request) -> str | None:
    """The request's key, or ``None``. Raises `Problem` (400) for one that is no key."""
    key: str | None = request.env.get("HTTP_IDEMPOTENCY_KEY")
    if key is not None and not _KEY.fullmatch(key):
        raise bad_request(f"{HEADER} must be 1 to 255 visible ASCII characters: correct it, or leave it out")
    return key


def message_ids(tenant: str, path: str, key: str, elements: Iterable[bytes], indices: Sequence[int]) -> list[bytes]:
    """32 bytes for each element: SHA-256 over tenant, path and key, the place in the request, and the element itself.

    So another body under the same key makes other messages, and dropping a neighbour changes no id.
    """
    parts = [part.encode("utf-8", "surrogateescape") for part in (tenant, path, key)]
    common = hashlib.sha256(b"".join(len(part).to_bytes(4, "big") + part for part in parts))
    ids = []
    for index, element in zip(indices, elements, strict=True):
        own = common.copy()
        own.update(index.to_bytes(8, "big") + element)
        ids.append(own.digest())
    return ids
