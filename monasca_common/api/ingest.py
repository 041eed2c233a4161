# SPDX-License-Identifier: Apache-2.0
"""The steps that all posts share: parse and check the elements of a body, derive message ids, and refuse invalid
elements.

With ``Idempotency-Key``, every worker derives the same message ids from a repeated request, without stored state.
Readers handle each id once, and a repeat that arrives while the first request is in flight waits for the same delivery.
"""

from __future__ import annotations

import hashlib
import logging
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import falcon

from monasca_common.api.limits import RETRY_AFTER_SECONDS
from monasca_common.api.log_fields import Reason, note_delivered
from monasca_common.api.problems import Problem, bad_request, too_large, unavailable, unprocessable
from monasca_common.api.publishing import Publishing, TopicMessages
from monasca_common.api.series_limit import SeriesLimit
from monasca_common.api.settings import ApiSettings
from monasca_common.kafka import IdentifiedRecords, Record
from monasca_common.kafka.errors import RegistryUnavailable, SerializationError
from monasca_common.models import metric
from monasca_common.models.errors import InvalidEnvelope, Unreadable, Violation
from monasca_common.models.post import ParsedPost, PostRules
from monasca_common.runtime.envelopes import EnvelopeWriter
from monasca_common.storage import retention
from monasca_common.storage.base import Kind
from monasca_common.storage.settings import RowLimits

LOG = logging.getLogger(__name__)

IDEMPOTENCY_KEY_HEADER = "Idempotency-Key"
_KEY = re.compile(r"[\x21-\x7e]{1,255}")
_UUID_7 = re.compile(r"([0-9a-f]{8})-([0-9a-f]{4})-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", re.IGNORECASE)
_KEY_AGE_MS = 86_400_000  # the time in an older key is ignored
_KEY_AHEAD_MS = 60_000  # tolerance for the client's clock
_SHOWN_VIOLATIONS = 20  # maximum number of violations in the error message; the details list all of them


@dataclass(frozen=True, slots=True)
class PostContext:
    """Dependencies of all posts. ``limits``: the storage limits. ``now``: returns seconds since the epoch. ``writers``:
    the writers of the kinds of messages that are sent in Avro, by kind."""

    settings: ApiSettings
    publishing: Publishing
    limits: RowLimits = field(default_factory=RowLimits)
    series_limit: SeriesLimit | None = None
    now: Callable[[], float] = time.time
    writers: Mapping[str, EnvelopeWriter] = field(default_factory=dict)

    def creation_time(self, key: str | None) -> float:
        """Return the time, in seconds with millisecond precision, from the key if it is a version 7 UUID of the last
        day, so that repeats have the same time; otherwise return the current time."""
        now_ms = int(self.now() * 1000)
        match = None if key is None else _UUID_7.fullmatch(key)
        key_ms = 0 if match is None else int(match[1] + match[2], 16)
        return (key_ms if now_ms - _KEY_AGE_MS < key_ms <= now_ms + _KEY_AHEAD_MS else now_ms) / 1000

    def encoded(self, kind: str, envelopes: list[bytes]) -> list[bytes]:
        """Return the envelopes, encoded in the format of their kind. Raises `Problem` (503) if the schema registry does
        not return the schema's id."""
        writer = self.writers.get(kind)
        if writer is None:
            return envelopes
        try:
            return writer.values(envelopes)
        except (RegistryUnavailable, SerializationError) as error:
            LOG.warning("envelopes of %s cannot be written in Avro: %s", kind, error)
            raise unavailable(
                "the schema of the messages is unavailable, so no message of this request was sent: repeat the request "
                "later",
                retry_after_seconds=RETRY_AFTER_SECONDS,
                reason=Reason.REGISTRY,
            ) from None

    def rules(self, kind: Kind, created: float) -> PostRules:
        """Return the storage limits at the time ``created``, so that a repeat is checked in the same way as the first
        attempt."""
        allowed = retention.window(self.limits, kind, round(created * 1000))
        return PostRules(allowed, self.limits.max_dimensions, self.limits.reserved_names)


def idempotency_key(request: falcon.Request) -> str | None:
    """Return the request's key, or ``None``. Raises `Problem` (400) for an invalid key."""
    key: str | None = request.env.get("HTTP_IDEMPOTENCY_KEY")
    if key is not None and not _KEY.fullmatch(key):
        raise bad_request(f"{IDEMPOTENCY_KEY_HEADER} must be 1 to 255 visible ASCII characters: correct or omit it")
    return key


def parsed(parse: Callable[[bytes, PostRules], ParsedPost], body: bytes, rules: PostRules) -> ParsedPost:
    """Parse a body. Raises `Problem`: 400 if it is unreadable, 422 if the body as a whole breaks a rule."""
    if not body:
        raise bad_request("the body is empty: send a body")
    try:
        return parse(body, rules)
    except Unreadable as error:
        raise bad_request(f"the body {violations_text(error.violations)}: correct it") from None
    except InvalidEnvelope as error:
        raise refusal(error.violations) from None


def records(
    values: list[bytes], post: ParsedPost, request: falcon.Request, key: str | None
) -> Sequence[bytes | Record]:
    """Return plain values, whose ids the producer creates (its fast path), or records with ids derived from ``key``."""
    note_delivered(request.env, len(values), post.total - len(post.valid))  # this value is replaced if an error follows
    if key is None:
        return values
    ids = message_ids(request.context.tenant, request.path, key, post.valid, post.indices)
    return IdentifiedRecords(values, ids)


def message_ids(tenant: str, path: str, key: str, elements: Iterable[bytes], indices: Iterable[int]) -> list[bytes]:
    """Return an id of 32 bytes per element: the SHA-256 hash of tenant, path, key, index in the request, and element.

    A different body with the same key therefore gets different ids, and rejecting an element changes no other id.
    """
    copy = _hash_of(tenant, path, key).copy
    ids = []
    for index, element in zip(indices, elements, strict=True):
        own = copy()
        own.update(index.to_bytes(8, "big") + element)
        ids.append(own.digest())
    return ids


def _hash_of(*parts: str) -> hashlib._Hash:
    encoded = [part.encode("utf-8", "surrogateescape") for part in parts]
    return hashlib.sha256(b"".join(len(part).to_bytes(4, "big") + part for part in encoded))


def publish_samples(posts: PostContext, post: ParsedPost, tenant: str, created: float) -> list[Violation]:
    """Publish the valid samples of a Prometheus or OpenTelemetry request; see `Publishing.publish_fitting`.

    A repeated sample has the same id in every request, derived from tenant, region, series, time, value and value_meta.
    Raises `Problem` like `Publishing.publish`, and `Problem` (429) if the tenant's series exceed the limit.
    """
    settings = posts.settings
    if posts.series_limit is not None:
        posts.series_limit.admit(tenant, post.valid, post.indices)
    values = posts.encoded("metrics", metric.envelopes(post.valid, tenant, settings.region, created))
    owner = _hash_of(tenant, settings.region).digest()[:16]
    ids = map(b"".join, zip([owner] * len(values), *post.id_parts, strict=True))
    bulk = TopicMessages(settings.metrics_topic, IdentifiedRecords(values, ids))
    return posts.publishing.publish_fitting(bulk, post.indices, keyed=True)


def refusal(violations: Sequence[Violation]) -> Problem:
    """Return status 422 with all violations and their positions, or 413 if an element is too large."""
    listed = [{"where": violation.where, "rule": violation.rule} for violation in violations]
    problem = too_large if any(violation.too_large for violation in violations) else unprocessable
    return problem(f"the request was refused: {violations_text(violations)}", details={"violations": listed})


def violations_text(violations: Sequence[Violation]) -> str:
    """Return one line with the first violations and the number of remaining ones."""
    text = "; ".join(map(str, violations[:_SHOWN_VIOLATIONS]))
    more = len(violations) - _SHOWN_VIOLATIONS
    return f"{text}; and {more} more" if more > 0 else text
