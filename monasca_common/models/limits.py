# SPDX-License-Identifier: Apache-2.0
"""The limits of names, dimensions and value_meta: strict for posts, lenient for messages in topics.

The API enforces `POSTED`. The persister enforces `STORED`, because an older API, an agent with its own producer or
another program may have written a message, and a refused message becomes a dead letter. So `STORED` only protects the
database and its indexes (types, lengths, no NUL). Lengths are in characters, not bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from monasca_common.models.json_text import A_NUL, HALF_A_PAIR

LONGEST_TEXT = 255
MOST_DIMENSIONS = 100  # dimensions of a metric, a log or an event; OpenStack's metrics have about 10
MOST_META_ENTRIES = 16
MOST_META_BYTES = 2048
#: The OTLP resource attributes that become dimensions by default.
RESOURCE_ATTRIBUTES = ("service.name", "service.namespace", "service.instance.id", "host.name")
LATEST_MS = 2**63 - 1

_SURROGATES = re.compile("[\ud800-\udfff]")
_FORBIDDEN = '<>={},"\\;&'


@dataclass(frozen=True, slots=True)
class TextRule:
    """A text of ``least`` to ``most`` characters that contains neither NUL, which PostgreSQL cannot store, nor a
    character of ``forbidden``, and does not start with ``prefix``."""

    least: int = 1
    most: int | None = LONGEST_TEXT
    forbidden: str = ""
    prefix: str = ""
    most_bytes: int | None = None

    @property
    def pattern(self) -> str:
        """A regular expression that matches texts that comply with this rule."""
        start = f"(?!{re.escape(self.prefix)})" if self.prefix else ""
        return f"{start}[^\\0{re.escape(self.forbidden)}]{{{self.least},{'' if self.most is None else self.most}}}"

    def faults(self, text: str) -> Iterator[str]:
        if len(text) < self.least:
            yield "must not be empty"
        if self.most is not None and len(text) > self.most:
            yield f"has {len(text)} characters: at most {self.most} are allowed"
        if self.most_bytes is not None and (size_bytes := len(text.encode(errors="replace"))) > self.most_bytes:
            yield f"has {size_bytes} bytes: at most {self.most_bytes} are allowed"
        if found := sorted(set(text).intersection(self.forbidden)):
            shown, rule = (" ".join("space" if c == " " else c for c in some) for some in (found, self.forbidden))
            yield f"has {shown}: none of {rule} is allowed"
        if self.prefix and text.startswith(self.prefix):
            yield f"starts with {self.prefix}: such keys are reserved"
        if "\0" in text:
            yield A_NUL
        if not text.isascii() and _SURROGATES.search(text):
            yield HALF_A_PAIR


ANY_TEXT = TextRule(least=0, most=None)
NON_EMPTY = TextRule()

# The limit is in bytes, because an index entry contains tenant, region and name, and is limited to 2.7 kB.
TENANT = TextRule(most=None, most_bytes=LONGEST_TEXT)
REGION = TextRule(least=0, most=None, most_bytes=LONGEST_TEXT)  # old writers omit the region


def too_many_dimensions(count: int, most: int) -> str:
    return f"has {count} entries: at most {most} are allowed"


@dataclass(frozen=True, slots=True)
class Limits:
    """The rules for one place. ``only_text_in_meta``: values of value_meta must be strings."""

    name: TextRule
    key: TextRule
    value: TextRule
    meta_key: TextRule
    only_text_in_meta: bool
    _quick: re.Pattern[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        pattern = f"{self.name.pattern}(?:\\0{self.key.pattern}\\0{self.value.pattern})*"
        object.__setattr__(self, "_quick", re.compile(pattern))

    def keep(self, name: str, dimensions: Mapping[str, str]) -> bool:
        """Return whether a name and its dimensions comply with all rules. One match for all strings takes half the time
        of one match per string."""
        texts = [name]
        for pair in dimensions.items():
            texts += pair
        joined = "\0".join(texts)
        # The count detects a text with a NUL, which would match as two texts.
        return joined.count("\0") == len(texts) - 1 and self._quick.fullmatch(joined) is not None


POSTED = Limits(
    name=TextRule(forbidden=_FORBIDDEN + "() "),
    key=TextRule(forbidden=_FORBIDDEN, prefix="_"),
    value=TextRule(forbidden=_FORBIDDEN),
    meta_key=NON_EMPTY,
    only_text_in_meta=True,
)
STORED = Limits(
    name=NON_EMPTY,
    key=NON_EMPTY,
    value=TextRule(least=0),
    meta_key=TextRule(least=0),
    only_text_in_meta=False,
)
