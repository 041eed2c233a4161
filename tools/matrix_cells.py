# SPDX-License-Identifier: Apache-2.0
"""Which combinations of versions the matrix runs: a base, each axis varied by itself, the oldest and the newest.

The versions are read where they are declared: Python's in ``setup.cfg``, confluent-kafka's oldest in
``requirements.txt`` and its newest in ``upper-constraints.txt``.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

# The newest of each that Maven Central has. Between them stands the version that every other test runs on.
KAFKA_OLDEST, KAFKA_NEWEST = "3.9.2", "4.4.0"


@dataclass(frozen=True, slots=True)
class Axes:
    """The versions of each axis, oldest first. ``tried_python`` is one that setup.cfg does not name yet."""

    pythons: tuple[str, ...]  # minor versions, such as 3.11
    tried_python: str
    confluent_kafkas: tuple[str, ...]
    kafkas: tuple[str, ...]
    tested_kafka: str


@dataclass(frozen=True, slots=True)
class Cell:
    """One combination. ``reason``: why it cannot run; empty if it can. ``required``: whether that is a fault."""

    name: str
    kafka: str
    confluent_kafka: str
    python: str
    required: bool = True
    reason: str = ""


def axes(setup_cfg: str, requirements: str, constraints: str, tested_kafka: str) -> Axes:
    """From the texts of the files that declare them. Raises `ValueError` when one declares no version."""
    pythons = tuple(re.findall(r"(?m)^ *Programming Language :: Python :: (3\.\d+)$", setup_cfg))
    if not pythons:
        raise ValueError("setup.cfg names no version of Python: the matrix takes them from its classifiers")
    major, minor = map(int, pythons[-1].split("."))
    clients = (_version(requirements, ">="), _version(constraints, "=="))
    return Axes(
        pythons,
        f"{major}.{minor + 1}",
        tuple(dict.fromkeys(clients)),
        tuple(dict.fromkeys((KAFKA_OLDEST, tested_kafka, KAFKA_NEWEST))),
        tested_kafka,
    )


def plan(of: Axes, pythons: Mapping[str, str]) -> tuple[Cell, ...]:
    """The cells of these axes. ``pythons``: the interpreters that were found, by minor version."""
    base = Cell("base", of.tested_kafka, of.confluent_kafkas[-1], of.pythons[0])
    newest_python = max((each for each in of.pythons if each in pythons), key=_numbers, default=of.pythons[-1])
    cells = [
        base,
        Cell("oldest", of.kafkas[0], of.confluent_kafkas[0], of.pythons[0]),
        Cell("newest", of.kafkas[-1], of.confluent_kafkas[-1], newest_python),
        *(replace(base, name=f"python-{each}", python=each) for each in of.pythons),
        replace(base, name=f"python-{of.tried_python}", python=of.tried_python, required=False),
        *(replace(base, name=f"confluent-kafka-{each}", confluent_kafka=each) for each in of.confluent_kafkas),
        *(replace(base, name=f"kafka-{each}", kafka=each) for each in of.kafkas),
    ]
    once = {(cell.kafka, cell.confluent_kafka, cell.python): cell for cell in reversed(cells)}
    return tuple(_judged(cell, pythons) for cell in cells if once[_key(cell)] is cell)


def chosen(cells: Sequence[Cell], names: Sequence[str]) -> tuple[Cell, ...]:
    """The cells of these names, all of them required; every cell if there is no name. Raises `ValueError`."""
    known = {cell.name: cell for cell in cells}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"there is no cell {', '.join(unknown)}: the cells are {', '.join(known)}")
    return tuple(replace(known[name], required=True) for name in names) if names else tuple(cells)


def _key(cell: Cell) -> tuple[str, str, str]:
    return cell.kafka, cell.confluent_kafka, cell.python


def _judged(cell: Cell, pythons: Mapping[str, str]) -> Cell:
    if cell.python in pythons:
        return cell
    remedy = f"install it, for example by pyenv install {cell.python}"
    return replace(cell, reason=f"no python{cell.python} on the PATH or in pyenv: {remedy}")


def _version(text: str, sign: str) -> str:
    found = re.search(rf"(?m)^confluent-kafka{sign}([\d.]+)", text)
    if not found:
        raise ValueError(f"no line begins with confluent-kafka{sign} and a version: the matrix takes it from there")
    return found[1]


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))
