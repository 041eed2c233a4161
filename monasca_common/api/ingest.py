# SPDX-License-Identifier: Apache-2.0
"""What all posts share: a body becomes checked elements, these become records, and violations become a refusal.

``Idempotency-Key`` gives records ids that a repeated request creates again, at any worker, at any time. Nothing is
remembered for them: a reader by id takes each message once, and a repeat that comes while the first request is in
flight waits for the same delivery, because the id is the same.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

import falcon

from monasca_common.api.log_fields import note_delivered
from monasca_common.api.problems import Problem, bad_request, too_large, unprocessable
from monasca_common.api.publishing import Publishing
from monasca_common.api.series_limit import SeriesLimit
from monasca_common.api.settings import ApiSettings
from monasca_common.kafka import Record
from monasca_common.models.errors import InvalidEnvelope, NotJson, Violation
from monasca_common.models.post import ParsedPost
from monasca_common.storage import retention
from monasca_common.storage.base import Kind
from monasca_common.storage.settings import RowLimits

IDEMPOTENCY_KEY_HEADER = "Idempotency-Key"
_KEY = re.compile(r"[\x21-\x7e]{1,255}")
_UUID_7 = re.compile(r"([0-9a-f]{8})-([0-9a-f]{4})-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", re.IGNORECASE)
_KEY_AGE_MS = 86_400_000  # an older key does not say when its request was made first
_KEY_AHEAD_MS = 60_000  # by which a client's clock may differ
_SHOWN_VIOLATIONS = 20  # of all, in a message for people


@dataclass(frozen=True, slots=True)
class PostContext:
    """What every kind of post needs. ``limits``: those of storage; ``now``: seconds since the epoch."""

    settings: ApiSettings
    publishing: Publishing
    limits: RowLimits = field(default_factory=RowLimits)
    series_limit: SeriesLimit | None = None
    now: Callable[[], float] = time.time

    def creation_time(self, key: str | None) -> float:
        """Seconds, in whole milliseconds: now, or when the client created the key, which repeats of the request have as
        well. Only a UUID of version 7 of the last day says so."""
        now_ms = int(self.now() * 1000)
        match = None if key is None else _UUID_7.fullmatch(key)
        key_ms = 0 if match is None else int(match[1] + match[2], 16)
        return (key_ms if now_ms - _KEY_AGE_MS < key_ms <= now_ms + _KEY_AHEAD_MS else now_ms) / 1000

    def within(
        self, limits_of: Kind, parse: Callable[..., ParsedPost], created: float
    ) -> Callable[[bytes], ParsedPost]:
        """``parse`` for a request made first at ``created``: what storage would refuse then is refused, and a repeat
        is judged like its first attempt."""
        allowed = retention.window(self.limits, limits_of, round(created * 1000))
        return partial(parse, allowed=allowed, max_dimensions=self.limits.max_dimensions)


def idempotency_key(request: falcon.Request) -> str | None:
    """The request's key, or ``None``. Raises `Problem` (400) for a value that is not a key."""
    key: str | None = request.env.get("HTTP_IDEMPOTENCY_KEY")
    if key is not None and not _KEY.fullmatch(key):
        raise bad_request(
            f"{IDEMPOTENCY_KEY_HEADER} must be 1 to 255 visible ASCII characters: correct it, or leave it out"
        )
    return key


def parsed(parse: Callable[[bytes], ParsedPost], body: bytes) -> ParsedPost:
    """Raises `Problem`: 400 for what is not JSON, 422 where the body as a whole breaks a rule."""
    if not body:
        raise bad_request("the body is empty: send JSON")
    try:
        return parse(body)
    except NotJson as error:
        raise bad_request(f"the body is not JSON: {violations_text(error.violations)}") from None
    except InvalidEnvelope as error:
        raise refusal(error.violations) from None


def records(
    values: list[bytes], post: ParsedPost, request: falcon.Request, key: str | None
) -> Sequence[bytes | Record]:
    """Bare values, for which the producer makes ids (its fast path), or records with the ids that the key makes."""
    note_delivered(request.env, len(values), len(post.rejected))  # an error notes what became of them instead
    if key is None:
        return values
    ids = message_ids(request.context.tenant, request.path, key, post.valid, post.indices)
    return [Record(value, message_id=own_id) for value, own_id in zip(values, ids, strict=True)]


def message_ids(tenant: str, path: str, key: str, elements: Iterable[bytes], indices: Sequence[int]) -> list[bytes]:
    """32 bytes for each element: SHA-256 over tenant, path and key, the place in the request, and the element itself.

    Another body under the same key thus makes other messages, and dropping a neighbour changes no id.
    """
    parts = [part.encode("utf-8", "surrogateescape") for part in (tenant, path, key)]
    common = hashlib.sha256(b"".join(len(part).to_bytes(4, "big") + part for part in parts))
    ids = []
    for index, element in zip(indices, elements, strict=True):
        own = common.copy()
        own.update(index.to_bytes(8, "big") + element)
        ids.append(own.digest())
    return ids


def refusal(violations: Sequence[Violation]) -> Problem:
    """422 with every violation and its place; 413 where something is too large."""
    listed = [{"where": violation.where, "rule": violation.rule} for violation in violations]
    problem = too_large if any(violation.too_large for violation in violations) else unprocessable
    return problem(f"nothing of the request was taken: {violations_text(violations)}", details={"violations": listed})


def violations_text(violations: Sequence[Violation]) -> str:
    """One line for people: the first ones, and how many more there are."""
    text = "; ".join(map(str, violations[:_SHOWN_VIOLATIONS]))
    more = len(violations) - _SHOWN_VIOLATIONS
    return f"{text}; and {more} more" if more > 0 else text
