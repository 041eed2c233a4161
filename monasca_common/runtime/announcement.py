# SPDX-License-Identifier: Apache-2.0
"""The one line that a healthy service logs at its start, and the one at its stop. Neither contains a secret."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterable


def started(service: str, **facts: object) -> str:
    """The line for the start: ``service`` with its version, and these facts without the empty ones."""
    return _line(service, "started", facts)


def stopped(service: str, **facts: object) -> str:
    """The line for the stop."""
    return _line(service, "stopped", facts)


def joined(values: Iterable[object]) -> str:
    """The values as one text, each once, in order."""
    return ", ".join(dict.fromkeys(map(str, values)))


def shown_url(url: str) -> str:
    """A URL without user, password and query, any of which may be secret; a path stays as it is."""
    if url.startswith("/"):
        return url
    scheme, separator, rest = url.partition("://")
    before, _, place = rest.rpartition("@")
    if not separator or "?" in before:  # the start of a password is ambiguous
        return f"{scheme}://(not shown)" if separator else "(not shown)"
    return f"{scheme}://{place.partition('?')[0]}"


def _line(service: str, what: str, facts: dict[str, object]) -> str:
    version = importlib.metadata.version("monasca-common")
    told = [f"{name.replace('_', ' ')} {value}" for name, value in facts.items() if value not in (None, "")]
    return f"{service} {version} {what}{': ' if told else ''}{'; '.join(told)}"
