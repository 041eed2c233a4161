# SPDX-License-Identifier: Apache-2.0
"""Names the extra of this package that installs a missing module."""

from __future__ import annotations

import importlib.metadata
import re

DISTRIBUTION = "monasca-common"

_REQUIRED_BY = re.compile(r"(?P<name>[\w.-]+).*;.*extra == ['\"](?P<extra>[\w-]+)['\"]")
_FOR_DEVELOPERS = frozenset({"test", "lint", "docs", "remote", "tempest"})


def remedy(error: ImportError, extra: str = "") -> str:
    """Return a text with the missing module and the extra to install. ``extra``: the caller's extra, preferred if
    several extras install the module."""
    missing = (error.name or "").partition(".")[0]
    if not isinstance(error, ModuleNotFoundError) or missing in ("", __package__.partition(".")[0]):
        return str(error)
    found = extras_with(missing)
    if extra and (extra in found or not found):
        found = [extra]
    wanted = " or ".join(f"{DISTRIBUTION}[{each}]" for each in found)
    return f"{missing} is not installed: install {wanted or 'it'}"


def extras_with(module: str) -> list[str]:
    """Return the extras whose requirements include a module; developer extras are returned only if there are no
    others."""
    wanted = _normalized(module)
    required = map(_REQUIRED_BY.match, importlib.metadata.requires(DISTRIBUTION) or ())
    found = [each["extra"] for each in required if each is not None and _normalized(each["name"]) == wanted]
    return [each for each in found if each not in _FOR_DEVELOPERS] or found


def missing_distributions(extra: str) -> list[str]:
    """Return the requirements of an extra that are not installed."""
    required = map(_REQUIRED_BY.match, importlib.metadata.requires(DISTRIBUTION) or ())
    names = [each["name"] for each in required if each is not None and each["extra"] == extra]
    return [name for name in names if not any(importlib.metadata.distributions(name=name))]


def _normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
