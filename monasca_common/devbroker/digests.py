# SPDX-License-Identifier: Apache-2.0
"""Compares jars with the SHA-256 digests that are pinned in this package: a repository may deliver something else."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

Digests = Mapping[str, str]


def read_digests(file: Path) -> dict[str, str]:
    """{name: digest} of a file as ``sha256sum`` writes it. Raises `OSError`; `ValueError`, which names the line."""
    digests = {}
    for number, line in enumerate(file.read_text().splitlines(), start=1):
        digest, _, name = line.partition(" ")
        name = name.lstrip(" *")
        if not name or len(digest) != 64 or not set(digest) <= set("0123456789abcdef"):
            raise ValueError(f"{file} line {number} is not a SHA-256 digest and a name: write it with sha256sum")
        digests[name] = digest
    return digests


def foreign_jars(jars: Iterable[Path], pinned: Digests) -> Iterator[str]:
    """A sentence for each jar whose digest is not the pinned one, or that has none."""
    for jar in jars:
        with jar.open("rb") as content:
            digest = hashlib.file_digest(content, "sha256").hexdigest()
        if jar.name not in pinned:
            yield f"{jar.name} is not one of the pinned jars"
        elif digest != pinned[jar.name]:
            yield f"{jar.name} has the SHA-256 digest {digest}, and {pinned[jar.name]} is pinned"
