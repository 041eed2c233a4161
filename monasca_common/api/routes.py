# SPDX-License-Identifier: Apache-2.0
"""The routes of the application, by which logs and metrics name what was asked for without its values."""

from __future__ import annotations

import re
from collections.abc import Iterable

OTHER = "other"  # where there is no route, and for a method that none has
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class Routes:
    """``templates``: as they are given to Falcon; parts in braces stand for any text without a slash."""

    def __init__(self, templates: Iterable[str]) -> None:
        known = {_stripped(template) for template in templates}
        self._plain = frozenset(template for template in known if "{" not in template)
        self._patterns = [
            (re.compile(re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(template))), template)
            for template in sorted(known - self._plain)
        ]

    def find(self, path: str) -> str:
        """The template of a path, or `OTHER`."""
        path = _stripped(path)
        if path in self._plain:
            return path
        return next((template for pattern, template in self._patterns if pattern.fullmatch(path)), OTHER)


def method_of(name: str) -> str:
    """Callers may send any, and a label that takes all of them would be without bounds."""
    return name if name in _METHODS else OTHER


def _stripped(path: str) -> str:
    return path.rstrip("/") or "/"
