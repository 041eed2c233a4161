# SPDX-License-Identifier: Apache-2.0
"""``Idempotency-Key``: ids that a repeated request makes again, at any worker, at any time.

Nothing is remembered for them. A reader that keys on the message id takes each message once however often it was sent,
and a repeat that comes while the first is on its way attaches to it in the producer, since the id is the same.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence

import falcon

from monasca_common.api.problems import bad_request

HEADER = "Idempotency-Key"
_KEY = re.compile(r"[\x21-\x7e]{1,255}")
_UUID_7 = re.compile(r"([0-9a-f]{8})-([0-9a-f]{4})-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", re.IGNORECASE)


def idempotency_key(request: falcon.Request) -> str | None:
    """The request's key, or ``None``. Raises `Problem` (400) for a value that is not a key."""
    key: str | None = request.env.get("HTTP_IDEMPOTENCY_KEY")
    if key is not None and not _KEY.fullmatch(key):
        raise bad_request(f"{HEADER} must be 1 to 255 visible ASCII characters: correct it, or leave it out")
    return key


def key_time_ms(key: str) -> int | None:
    """When the client made this key, in ms since the epoch: only a UUID of version 7 says so."""
    match = _UUID_7.fullmatch(key)
    return None if match is None else int(match[1] + match[2], 16)


def request_digest(tenant: str, path: str, key: str) -> bytes:
    """16 bytes: what repeats of one request have in common."""
    return _common(tenant, path, key).digest()[:16]


def message_ids(tenant: str, path: str, key: str, elements: Iterable[bytes], indices: Sequence[int]) -> list[bytes]:
    """32 bytes for each element: SHA-256 over tenant, path and key, the place in the request, and the element itself.

    So another body under the same key makes other messages, and dropping a neighbour changes no id.
    """
    common = _common(tenant, path, key)
    ids = []
    for index, element in zip(indices, elements, strict=True):
        own = common.copy()
        own.update(index.to_bytes(8, "big") + element)
        ids.append(own.digest())
    return ids


def _common(tenant: str, path: str, key: str) -> hashlib._Hash:
    parts = [part.encode("utf-8", "surrogateescape") for part in (tenant, path, key)]
    return hashlib.sha256(b"".join(len(part).to_bytes(4, "big") + part for part in parts))
