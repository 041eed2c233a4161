# SPDX-License-Identifier: Apache-2.0
"""Write the table of production dependencies and their licences to doc/source/install/licences.inc.

The unit test ``test_licences`` compares the table with the installed distributions.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from importlib.metadata import Distribution, distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from monasca_common.kafka.extras import missing_distributions

PACKAGE = "monasca-common"
# The extras for production; all other extras are for tests, checks and trials.
RUNTIME_EXTRAS = (
    *("api", "avro", "cli", "dashboard", "json-schema", "memcached", "mirror", "monitoring"),
    *("notification", "otel", "otlp", "persister", "postgresql", "prometheus", "protobuf", "services", "spark"),
)
TABLE = Path(__file__).parents[1] / "doc/source/install/licences.inc"
_HEAD = """\
.. list-table::
   :header-rows: 1
   :widths: 30 40 30

   * - Distribution
     - Licence
     - Needed by
"""


def main() -> int:
    if missing := [name for extra in RUNTIME_EXTRAS for name in missing_distributions(extra)]:
        extras = ",".join(RUNTIME_EXTRAS)
        print(f"not installed: {', '.join(missing)}: pip install -e '.[{extras}]' first", file=sys.stderr)
        return 1
    TABLE.write_text(_HEAD + "".join(rows()))
    return 0


def rows() -> list[str]:
    """Return the rows of the table, from the installed distributions."""
    base, everything = needed(), needed(RUNTIME_EXTRAS)
    extras = {extra: needed([extra]) for extra in RUNTIME_EXTRAS}
    found = []
    for name, each in sorted(everything.items()):
        by = "every installation" if name in base else ", ".join(x for x in extras if name in extras[x])
        found.append(f"   * - {name}\n     - {licence(each)}\n     - {by}\n")
    return found


def needed(extras: Iterable[str] = ()) -> Mapping[str, Distribution]:
    """Return the dependencies of this package with these extras, by canonical name.

    Distributions that are not installed are omitted, because markers can exclude them on this machine.
    """
    found: dict[str, Distribution] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    waiting = [(PACKAGE, frozenset(extras))]
    while waiting:
        name, wanted = waiting.pop()
        installed = next(iter(distributions(name=name)), None)
        if (name, wanted) in seen or installed is None:
            continue
        seen.add((name, wanted))
        found[name] = installed
        waiting += [
            (canonicalize_name(requirement.name), frozenset(requirement.extras))
            for requirement in _requirements(installed, wanted)
        ]
    del found[PACKAGE]
    return found


def licence(found: Distribution) -> str:
    """Return the licence that the distribution declares: an SPDX expression, classifiers, or the first line of its
    licence text."""
    [expression] = found.metadata.get_all("License-Expression") or [""]
    [text] = found.metadata.get_all("License") or [""]
    classifiers = [each for each in found.metadata.get_all("Classifier") or () if each.startswith("License :: ")]
    names = [each.rpartition(" :: ")[2] for each in classifiers if each != "License :: OSI Approved"]
    known = text.strip() or "not declared"
    return expression or ", ".join(names) or known.splitlines()[0]


def _requirements(found: Distribution, extras: Iterable[str]) -> list[Requirement]:
    requirements = map(Requirement, found.requires or ())
    return [requirement for requirement in requirements if _holds(requirement, extras)]


def _holds(requirement: Requirement, extras: Iterable[str]) -> bool:
    marker = requirement.marker
    return marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras))


if __name__ == "__main__":
    sys.exit(main())
