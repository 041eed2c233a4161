# SPDX-License-Identifier: Apache-2.0
"""Regular expressions whose matching time is proportional to the length of the text.

Tenants supply the text. Python's engine tries every possible match of a repetition, which takes years for some texts
with a hundred characters. RE2 reads the text once, but supports neither backreferences nor lookaround.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from monasca_common.kafka.errors import ConfigurationError

if TYPE_CHECKING:
    import re2

SYNTAX = "https://github.com/google/re2/wiki/Syntax"


@dataclass(frozen=True, slots=True)
class Pattern:
    """A regular expression in RE2's syntax. Raises `ValueError` for an invalid expression, with a text that callers
    append to the name of an option or field, and `ConfigurationError` if RE2 is not installed.
    """

    text: str
    _compiled: re2._Regexp = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        try:
            import re2  # the import is here, because RE2 is an optional package
        except ImportError:
            raise ConfigurationError("google-re2 is not installed: install monasca-common[spark]") from None
        options = re2.Options()
        options.log_errors = False
        options.never_capture = True
        try:
            compiled = re2.compile(self.text, options)
        except (re2.error, UnicodeEncodeError) as error:
            detail = error.args[0].decode(errors="replace") if isinstance(error, re2.error) else "it is not Unicode"
            raise ValueError(
                f"{self.text!r} is not a regular expression in the syntax of RE2 ({detail}): RE2 supports neither "
                f"backreferences nor lookaround, and at most 1,000 repetitions; see {SYNTAX}"
            ) from None
        object.__setattr__(self, "_compiled", compiled)

    def is_in(self, value: str) -> bool:
        """Return whether the pattern matches anywhere in the value."""
        # A lone surrogate has no encoding and does not match. Matching bytes takes a third of the time of matching
        # text.
        return self._compiled.search(value.encode(errors="surrogatepass")) is not None
