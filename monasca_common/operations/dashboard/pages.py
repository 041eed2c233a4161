# SPDX-License-Identifier: Apache-2.0
"""Renders views as HTML from templates."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from typing import Any
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined

from monasca_common.operations.dashboard.view import Page, PanelView, clock, page_of, verdict

ON_OVERVIEW = 5
ON_PAGE = 50
_REFRESH_SECONDS = 5
_TREND_WIDTH, _TREND_HEIGHT = 100, 20

STATIC_TYPES = {
    "dashboard.css": "text/css; charset=utf-8",
    "dashboard.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}


class Pages:
    """Renders the HTML of each page. ``user``: the user who has logged in, or ``None``."""

    def __init__(self) -> None:
        self._templates = Environment(
            loader=PackageLoader(__package__),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.globals.update(trend_points=trend_points, query=urlencode, clock=clock)

    def overview(self, views: Sequence[PanelView], user: str | None, now_ms: int) -> str:
        panels = [(view, page_of(view.digest or view.rows, 1, "", ON_OVERVIEW)) for view in views]
        return self._html("overview.html", user, now_ms, verdict=verdict(views), panels=panels)

    def panel(self, views: Sequence[PanelView], view: PanelView, page: Page, user: str | None, now_ms: int) -> str:
        return self._html("panel.html", user, now_ms, verdict=verdict(views), view=view, page=page)

    def login(self, user: str | None, *, error: str, has_project: bool, then: str) -> str:
        return self._html("login.html", user, 0, error=error, has_project=has_project, then=then)

    def error(self, user: str | None, title: str, text: str) -> str:
        return self._html("error.html", user, 0, title=title, text=text)

    def _html(self, name: str, user: str | None, now_ms: int, **facts: Any) -> str:
        refresh = _REFRESH_SECONDS if now_ms else 0
        return self._templates.get_template(name).render(user=user, now_ms=now_ms, refresh_seconds=refresh, **facts)


def static_file(name: str) -> bytes | None:
    """Return the static file with this name, or ``None`` if it does not exist."""
    if name not in STATIC_TYPES:
        return None
    return (resources.files(__package__) / "static" / name).read_bytes()


def trend_points(row_trend: Sequence[float]) -> str:
    """Return the points of a sparkline in a box of 100 by 20."""
    step = _TREND_WIDTH / max(1, len(row_trend) - 1)
    return " ".join(
        f"{number * step:.1f},{_TREND_HEIGHT - 1 - share * (_TREND_HEIGHT - 2):.1f}"
        for number, share in enumerate(row_trend)
    )
