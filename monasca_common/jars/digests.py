# SPDX-License-Identifier: Apache-2.0
"""Reads the pinned jars and their SHA-256 digests, because a repository may deliver different files.

Each file ``<list>.txt`` in this folder has one line for each jar: its digest and its Maven coordinates. An archive has
``:classifier@extension`` after its version. ``tools/jar_digests.py`` writes these files.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

Digests = Mapping[str, str]

_HERE = Path(__file__).parent


class JarError(Exception):
    """A jar cannot be fetched, or differs from the pinned jar; the message names the jar and the remedy."""


@dataclass(frozen=True, slots=True)
class Jar:
    """One jar or archive of a Maven repository."""

    group: str
    artifact: str
    version: str
    sha256: str
    classifier: str = ""
    extension: str = "jar"

    @property
    def name(self) -> str:
        return f"{self.artifact}-{self.version}{self.classifier and f'-{self.classifier}'}.{self.extension}"

    @property
    def path(self) -> str:
        """The path below the URL of a Maven repository."""
        return f"{self.group.replace('.', '/')}/{self.artifact}/{self.version}/{self.name}"


def pinned_lists() -> list[str]:
    """Return the names of the lists, such as ``kafka-4.3.0``."""
    return sorted(file.stem for file in _HERE.glob("*.txt"))


def list_file(name: str) -> Path:
    """Return the file of the list with this name; it may not exist."""
    return _HERE / f"{name}.txt"


def read_list(file: Path) -> tuple[Jar, ...]:
    """Return the jars of a list. Raises `OSError`, and `ValueError` for a line without a digest and coordinates."""
    return tuple(_jar(file, text, digest) for text, digest in read_digests(file).items())


def _jar(file: Path, text: str, digest: str) -> Jar:
    coordinates, _, extension = text.partition("@")
    parts = coordinates.split(":")
    if len(parts) != (4 if extension else 3):
        raise ValueError(f"{file}: {text} is not group:artifact:version; write the file with tools/jar_digests.py")
    group, artifact, version = parts[:3]
    return Jar(group, artifact, version, digest, "".join(parts[3:]), extension or "jar")


def read_digests(file: Path) -> dict[str, str]:
    """Return {name: digest} from a file in the format of ``sha256sum``. Raises `OSError`, and `ValueError`, which names
    the line."""
    digests = {}
    for number, line in enumerate(file.read_text().splitlines(), start=1):
        digest, _, name = line.partition(" ")
        name = name.lstrip(" *")
        if not name or len(digest) != 64 or not set(digest) <= set("0123456789abcdef"):
            raise ValueError(f"{file} line {number} is not a SHA-256 digest and a name: write it with sha256sum")
        digests[name] = digest
    return digests


def foreign_jars(jars: Iterable[Path], pinned: Digests) -> Iterator[str]:
    """Yield a sentence for each jar that is not pinned or whose digest differs from the pinned digest."""
    for jar in jars:
        with jar.open("rb") as content:
            digest = hashlib.file_digest(content, "sha256").hexdigest()
        if jar.name not in pinned:
            yield f"{jar.name} is not one of the pinned jars"
        elif digest != pinned[jar.name]:
            yield f"{jar.name} has the SHA-256 digest {digest}, but {pinned[jar.name]} is pinned"
