# SPDX-License-Identifier: Apache-2.0
"""Hides packages that the extra ``docs`` does not install, so that a build with all extras fails as one with ``docs``
does: an import of a documented module must be in ``docs`` or in ``autodoc_mock_imports``.
"""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from sphinx.application import Sphinx

_INSTALLED_WITH_PYTHON = {"pip", "setuptools", "wheel"}


def _installed_by(extra: str) -> set[str]:
    """Return the names of the distributions that an extra of this package installs, and of those that they need."""
    found: set[tuple[str, str]] = set()
    pending = {("monasca-common", ""), ("monasca-common", extra)}
    while pending:
        found.add(wanted := pending.pop())
        name, extra = wanted
        for line in importlib.metadata.requires(name) or ():
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                needed = canonicalize_name(requirement.name)
                pending |= {(needed, part) for part in ("", *requirement.extras)} - found
    return {name for name, _ in found}


class HiddenPackages:
    """A finder that refuses to import the modules of other distributions."""

    def __init__(self, extra: str) -> None:
        visible = _installed_by(extra) | _INSTALLED_WITH_PYTHON
        self.names = {
            module
            for module, distributions in importlib.metadata.packages_distributions().items()
            if visible.isdisjoint(map(canonicalize_name, distributions))
        }

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name.partition(".")[0] in self.names:
            raise ModuleNotFoundError(f"the extra docs does not install {name}", name=name)
        return None


def setup(app: Sphinx) -> dict[str, bool]:
    sys.meta_path.insert(0, HiddenPackages("docs"))
    return {"parallel_read_safe": True}
