# SPDX-License-Identifier: Apache-2.0
"""What all posts share: a body becomes checked elements, these become records, and what is wrong becomes a refusal."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import falcon

from monasca_common.api.idempotency import key_time_ms, message_ids, request_digest
from monasca_common.api.notes import note_delivered
from monasca_common.api.problems import Problem, bad_request, too_large, unprocessable
from monasca_common.api.publishing import Publishing
from monasca_common.api.series_limit import SeriesLimit
from monasca_common.api.settings import ApiSettings
from monasca_common.api.stamps import SHARED, Stamps
from monasca_common.kafka import Record
from monasca_common.models.errors import InvalidEnvelope, NotJson, Violation
from monasca_common.models.post import ParsedPost
from monasca_common.storage import retention
from monasca_common.storage.base import Kind
from monasca_common.storage.settings import RowLimits

_SHOWN_VIOLATIONS = 20  # of all, in a message for people


@dataclass(frozen=True, slots=True)
class PostContext:
    """What every kind of post needs. ``limits``: those of storage; ``now``: seconds since the epoch."""

    settings: ApiSettings
    publishing: Publishing
    limits: RowLimits = field(default_factory=RowLimits)
    series_limit: SeriesLimit | None = None
    now: Callable[[], float] = time.time
    stamps: Stamps = SHARED

    def creation_time(self, request: falcon.Request, key: str | None) -> float:
        """Seconds, in whole milliseconds: when this request was made first."""
        now_ms = int(self.now() * 1000)
        if key is not None:
            digest = request_digest(request.context.tenant, request.path, key)
            now_ms = self.stamps.first_ms(digest, now_ms, key_time_ms(key))
        return now_ms / 1000

    def within(
        self, limits_of: Kind, parse: Callable[..., ParsedPost], created: float
    ) -> Callable[[bytes], ParsedPost]:
        """``parse`` for a request made first at ``created``: what storage would refuse then is refused, and a repeat
        is judged like its first attempt."""
        allowed = retention.window(self.limits, limits_of, round(created * 1000))
        return partial(parse, allowed=allowed, max_dimensions=self.limits.max_dimensions)


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
