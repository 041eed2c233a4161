# SPDX-License-Identifier: Apache-2.0
"""Boxes, arrows and labels as SVG, for the figures of the documentation. Coordinates are pixels."""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape

INK, PALE, WHITE = "#1f2937", "#e5e7eb", "#ffffff"
GREEN, RED, AMBER, BLUE = "#bbf7d0", "#fecaca", "#fde68a", "#bfdbfe"

_LINE_PX = 17
_HEAD = (
    '<defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
    f'orient="auto-start-reverse"><path d="M0 0L10 5L0 10z" fill="{INK}"/></marker></defs>'
)


@dataclass
class Canvas:
    """A figure. ``title``: the figure's text for screen readers."""

    width: int
    height: int
    title: str
    _parts: list[str] = field(default_factory=list)

    def box(
        self, x: int, y: int, width: int, height: int, text: str, *, fill: str = WHITE, dashed: bool = False
    ) -> None:
        """Draw a rounded box with one or several centered lines of text."""
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self._parts.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="6" fill="{fill}" stroke="{INK}"{dash}/>'
        )
        lines = text.split("\n")
        first = y + height / 2 - (len(lines) - 1) * _LINE_PX / 2 + 5
        for number, line in enumerate(lines):
            self.label(
                x + width / 2, first + number * _LINE_PX, line, anchor="middle", bold=number == 0 and len(lines) > 1
            )

    def label(
        self, x: float, y: float, text: str, *, anchor: str = "start", bold: bool = False, small: bool = False
    ) -> None:
        """Draw a line of text. ``y``: its base line."""
        weight = ' font-weight="bold"' if bold else ""
        size = ' font-size="12"' if small else ""
        self._parts.append(f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}"{weight}{size}>{escape(text)}</text>')

    def arrow(self, *points: tuple[int, int], dashed: bool = False) -> None:
        """Draw a line through the points, with an arrowhead at the last one."""
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        path = " ".join(f"{x},{y}" for x, y in points)
        self._parts.append(f'<polyline points="{path}" fill="none" stroke="{INK}"{dash} marker-end="url(#head)"/>')

    def line(self, *points: tuple[int, int]) -> None:
        path = " ".join(f"{x},{y}" for x, y in points)
        self._parts.append(f'<polyline points="{path}" fill="none" stroke="{INK}"/>')

    def svg(self) -> str:
        """Return the figure as a document."""
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{self.width}" height="{self.height}" '
            f'viewBox="0 0 {self.width} {self.height}" font-family="Helvetica, Arial, sans-serif" font-size="14" '
            f'fill="{INK}" role="img"><title>{escape(self.title)}</title>{_HEAD}'
            f'<rect width="{self.width}" height="{self.height}" fill="{WHITE}"/>' + "\n".join(self._parts) + "</svg>\n"
        )
