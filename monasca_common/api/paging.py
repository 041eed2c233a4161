# SPDX-License-Identifier: Apache-2.0
"""The shape of every list: links, and the elements of one page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote, unquote_plus

import falcon
import msgspec


def links(request: falcon.Request, next_offset: str | None = None) -> list[dict[str, str]]:
    """``self`` is the URL as it was asked for; ``next`` the same with another offset, only where more remains."""
    query = request.query_string
    found = [_link("self", request, query)]
    if next_offset is not None:
        kept = [part for part in query.split("&") if part and unquote_plus(part.partition("=")[0]) != "offset"]
        found.append(_link("next", request, "&".join([f"offset={quote(next_offset, safe='')}", *kept])))
    return found


def answer(response: falcon.Response, document: Any) -> None:
    response.content_type = falcon.MEDIA_JSON
    response.data = msgspec.json.encode(document)


def answer_page(
    request: falcon.Request, response: falcon.Response, elements: Sequence[Any], next_offset: str | None = None
) -> None:
    answer(response, {"links": links(request, next_offset), "elements": elements})


def _link(rel: str, request: falcon.Request, query: str) -> dict[str, str]:
    path = quote(request.path)
    return {"rel": rel, "href": f"{request.prefix}{path}{'?' if query else ''}{query}"}
