# SPDX-License-Identifier: Apache-2.0
"""Report wording from ``tools/english.toml`` in documentation, comments, docstrings, messages and other texts.

``python tools/english.py [FILE ...]`` checks these files, by default all of them. ``--commits`` checks the subjects of
the commits after ``commits_since`` instead. It prints a line for each finding and then exits with status 1.
"""

import ast
import io
import re
import subprocess
import sys
import tokenize
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
_TEXTS = ("*.py", "*.rst", "*.cfg", "*.ini", "*.html", "*.json", "*.sh", "*.[ch]", "deploy/*", "releasenotes/*.yaml")
_CODE = re.compile(r"``[^`]*``|`[^`<]*`|:[a-z:]+:`[^`]*`|<[^ >]+>")  # names and programs are not checked
_WORDS = re.compile(r"[A-Za-z]{2,}\W+[a-z]{2,}\W+[a-z]{2,}")  # a string with three words in a row is a message
_SUBJECT_LENGTH = 72
_NOT_IMPERATIVE = re.compile(
    r"(?!(Embed|Feed|Need|Seed|Speed|Bring|Pass|Address|Process|Compress)\b)\w+(ed|ing|[^s]s) "
)


def _pages(text: str) -> Iterator[tuple[int, str]]:
    """Yield each paragraph and the number of its first line, except indented programs."""
    number = 1
    program: int | None = None  # the indentation of the text that precedes a program
    for block in re.split(r"(\n(?:[ \t]*\n)+)", text):
        lines = block.splitlines()
        indent = len(block) - len(block.lstrip())
        if block.strip():
            if program is not None and indent <= program:
                program = None
            if program is None:
                yield number, block
                last = lines[-1].strip()
                if last.endswith("::") or last.startswith(".. code-block"):
                    program = len(lines[-1]) - len(lines[-1].lstrip())
                elif lines[0].lstrip().startswith((".. code-block", ".. literalinclude", ".. parsed-literal")):
                    program = indent
        number += block.count("\n")


def _python(source: str) -> Iterator[tuple[int, str]]:
    """Yield comments, docstrings and messages, with the parts of f-strings joined."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    yield from ((token.start[0], token.string) for token in tokens if token.type == tokenize.COMMENT)
    joined = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.JoinedStr):
            joined |= {id(part) for part in node.values}
            yield node.lineno, "".join(str(p.value) if isinstance(p, ast.Constant) else "{}" for p in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in joined:
            yield node.lineno, node.value


def findings(path: Path, phrases: list[dict[str, str]]) -> Iterator[str]:
    text = path.read_text()
    for number, part in _python(text) if path.suffix == ".py" else _pages(text):
        if path.suffix == ".py" and not _WORDS.search(part):
            continue
        plain = re.sub(r"\s+", " ", _CODE.sub("``", part))
        for phrase in phrases:
            for match in re.finditer(phrase["pattern"], plain, re.IGNORECASE):
                around = plain[max(0, match.start() - 30) : match.end() + 30]
                if "unless" not in phrase or not re.search(phrase["unless"], around, re.IGNORECASE):
                    yield f"{path.relative_to(ROOT)}:{number}: ...{around}...: use {phrase['use']} ({phrase['why']})"


def subject_error(subject: str) -> str | None:
    """Return the error in the subject of a commit, or ``None``."""
    if len(subject) > _SUBJECT_LENGTH:
        return f"{len(subject)} characters; at most {_SUBJECT_LENGTH}"
    imperative = re.match(r"[A-Z]", subject) and not _NOT_IMPERATIVE.match(subject)
    return None if imperative else "not imperative: start with a verb such as 'Add' or 'Fix'"


def _git(*arguments: str) -> list[str]:
    done = subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True)
    return done.stdout.splitlines()


def main(arguments: list[str]) -> int:
    rules = tomllib.loads((ROOT / "tools" / "english.toml").read_text())
    if arguments == ["--commits"]:
        subjects = _git("log", "--format=%s", f"{rules['commits_since']}..HEAD")
        found = [f"commit {subject!r}: {error}" for subject in subjects if (error := subject_error(subject))]
    else:
        names = arguments or [name for name in _git("ls-files", *_TEXTS) if "/tests/" not in name]
        found = [line for name in names for line in findings(ROOT / name, rules["phrase"])]
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
