# SPDX-License-Identifier: Apache-2.0
"""Pictures of a running quick start: its output as SVG, and its dashboard as PNG in both color schemes."""

from __future__ import annotations

import hashlib
import io
import itertools
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import sync_playwright
from rich.console import Console
from rich.text import Text

PACKAGE = Path(__file__).parents[2] / "monasca_common"
# The pictures are stale once one of these changes.
SOURCES = (
    "operations/dashboard/static/*",
    "operations/dashboard/templates/*",
    "operations/dashboard/view.py",
    "quickstart/aggregates.py",
    "quickstart/alarm.py",
    "quickstart/table.py",
    "quickstart/webhook.py",
)
_COLUMNS = 110
_RUN_SECONDS = 300
_PAGE_MS = 60_000
_FONT_FACE = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)  # of another site


def digest() -> str:
    """Return a digest of the sources of the pictures."""
    files = sorted(file for pattern in SOURCES for file in PACKAGE.glob(pattern))
    return hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()


def take(folder: Path) -> None:
    """Run the quick start, and write its pictures and their digest to the folder."""
    with _quickstart() as lines:
        text = "".join(itertools.takewhile(lambda line: "All services run until Ctrl-C" not in line, lines))
        dashboard = re.search(r"the dashboard is at (\S+)", text)
        if dashboard is None:
            raise SystemExit(f"the quick start failed:\n{text}")
        _screenshots(dashboard[1], folder)
    console = Console(record=True, width=_COLUMNS, file=io.StringIO())
    console.print(Text.from_ansi(text))
    svg = console.export_svg(title="bash tools/quickstart.sh")
    (folder / "quickstart.svg").write_text(_FONT_FACE.sub("", svg))
    (folder / "pictures.sha256").write_text(digest() + "\n")


@contextmanager
def _quickstart() -> Iterator[Iterator[str]]:
    """Run the quick start, and yield its lines of output."""
    environment = {**os.environ, "COLUMNS": str(_COLUMNS), "FORCE_COLOR": "1"}
    command = ["timeout", "--signal=INT", str(_RUN_SECONDS), "monasca-common", "quickstart"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        try:
            yield iter(process.stdout)
        finally:
            process.send_signal(signal.SIGINT)
            sys.stderr.write(process.stdout.read())


def _screenshots(url: str, folder: Path) -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=os.environ.get("CHROMIUM", "/usr/bin/chromium"))
        for scheme in ("light", "dark"):
            page = browser.new_page(color_scheme=scheme, viewport={"width": 1280, "height": 900})
            page.goto(url, timeout=_PAGE_MS)
            page.wait_for_load_state("networkidle", timeout=_PAGE_MS)
            page.screenshot(path=folder / f"dashboard-{scheme}.png", full_page=True)
        browser.close()
