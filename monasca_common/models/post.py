# SPDX-License-Identifier: Apache-2.0
"""Parses posted bodies: returns the valid elements, and the violations of the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any, NamedTuple

import msgspec

from monasca_common.models import json_text, times
from monasca_common.models.errors import InvalidEnvelope, Unreadable, Violation
from monasca_common.models.limits import MOST_DIMENSIONS
from monasca_common.models.times import ANY_TIME, Window

MOST_ELEMENTS = 20_000
MOST_BYTES = 16 * 1024 * 1024  # maximum bytes of a converted request, because a worker serves several at a time
_MOST_VIOLATIONS = 10_000  # a body of 5 MB can have a million violations
_MOST_OF_ONE = 100

_split_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_split_array = msgspec.json.Decoder(list[msgspec.Raw]).decode


class PostRules(NamedTuple):
    """The rules for elements in addition to `Limits`. ``allowed``: the range of timestamps. ``reserved_names``: names
    that metrics must not have."""

    allowed: Window = ANY_TIME
    max_dimensions: int = MOST_DIMENSIONS
    reserved_names: frozenset[str] = frozenset()


DEFAULT_RULES = PostRules()


@dataclass(frozen=True, slots=True)
class Rejected:
    """An element that breaks rules: its index in the bulk, its posted bytes, and its violations."""

    index: int
    raw: bytes
    violations: tuple[Violation, ...]


@dataclass(frozen=True, slots=True)
class ParsedPost:
    """``valid[i]`` is element ``indices[i]`` of ``total``, as JSON for an envelope.

    Equal elements have equal bytes in ``valid``: keys are ordered, unknown members and white space are removed.
    ``violations``: the violations of all ``rejected`` elements, at most the first 10,000. ``id_parts``: the columns of
    the parts of ids, which are equal for equal elements; set only by `Samples`.
    """

    valid: list[bytes]
    indices: list[int]
    total: int
    violations: tuple[Violation, ...] = ()
    rejected: tuple[Rejected, ...] = ()
    id_parts: Sequence[Sequence[bytes]] = ()


def members_of(body: bytes) -> dict[str, bytes]:
    """Return the JSON of a body's members. Raises `Unreadable`, or `InvalidEnvelope` if it is not an object."""
    try:
        return {key: bytes(member) for key, member in _split_object(body).items()}
    except json_text.UNREADABLE as error:
        members = _read_leniently(body, error, dict, Violation("", "must be an object"))
    return {key: json_text.write_leniently(member) for key, member in members.items()}


def split(array: bytes, place: str = "") -> list[bytes]:
    """Return the JSON of the elements. Raises `Unreadable`, or `InvalidEnvelope` if it is not an array or too long.

    Invalid JSON that Python's json accepts (NaN, an unpaired surrogate) invalidates only its element.
    """
    write: Callable[[Any], bytes] = bytes
    try:
        elements: list[Any] = _split_array(array)
    except json_text.UNREADABLE as error:
        elements = _read_leniently(array, error, list, Violation(place, "must be an array"))
        write = json_text.write_leniently
    check_count(len(elements), place)
    return list(map(write, elements))


def _read_leniently(text: bytes, error: Exception, kind: type, violation: Violation) -> Any:
    try:
        value = json_text.read_leniently(text)
    except ValueError:
        raise Unreadable(json_text.reason(error)) from None
    if not isinstance(value, kind):
        raise InvalidEnvelope([violation])
    return value


def check_count(count: int, place: str = "") -> None:
    if count > MOST_ELEMENTS:
        raise InvalidEnvelope([Violation(place, f"has {count} elements: send at most {MOST_ELEMENTS} at a time")])


def parse_each(elements: Sequence[bytes], parse: Callable[[bytes], bytes], place: Callable[[int], str]) -> ParsedPost:
    """Parse all elements. ``parse`` returns the JSON of an element for its envelope, or raises `InvalidEnvelope`."""
    valid: list[bytes] = []
    indices: list[int] = []
    violations: list[Violation] = []
    rejected: list[Rejected] = []
    for index, element in enumerate(elements):
        try:
            valid.append(parse(element))
            indices.append(index)
        except InvalidEnvelope as error:
            room = max(1, min(_MOST_OF_ONE, _MOST_VIOLATIONS - len(violations)))
            placed = tuple(violation.within(place(index)) for violation in error.violations[:room])
            rejected.append(Rejected(index, element, placed))
            if len(violations) < _MOST_VIOLATIONS:
                violations += placed
    return ParsedPost(valid, indices, len(elements), tuple(violations), tuple(rejected))


def envelopes_of(member: bytes, elements: Sequence[bytes], meta: Mapping[str, str], created: float) -> list[bytes]:
    """Return the messages of elements of `ParsedPost.valid`; ``created``: their creation_time in seconds."""
    start = b'{"%b":' % member
    end = b',"meta":%b,"creation_time":%b}' % (json_text.write(meta), times.seconds_text(created))
    return list(map(b"".join, zip(repeat(start), elements, repeat(end))))  # two thirds of the time of additions
