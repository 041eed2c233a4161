# SPDX-License-Identifier: Apache-2.0
"""Pages of lists: creates links, and limits the number and total size of elements."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeVar
from urllib.parse import quote, unquote_plus

import falcon
import msgspec

from monasca_common.alarms.database import Slice
from monasca_common.api.problems import Problem, unprocessable
from monasca_common.storage.reader import PageOf

PAGE_LIMIT = 10_000  # maximum number of elements per response; for measurements and statistics, the number of rows
MAX_ANSWER_BYTES = 16 * 1024 * 1024  # maximum total size of elements; a response uses twice as much memory

T = TypeVar("T")
Page = TypeVar("Page", PageOf, Slice)
encode = msgspec.json.encode


def links(request: falcon.Request, next_offset: str | None = None) -> list[dict[str, str]]:
    """Return the link ``self`` (the URL of the request), and with ``next_offset`` also the link ``next``."""
    query = request.query_string
    found = [_link("self", request, query)]
    if next_offset is not None:
        others = [part for part in query.split("&") if part and unquote_plus(part.partition("=")[0]) != "offset"]
        found.append(_link("next", request, "&".join([f"offset={quote(next_offset, safe='')}", *others])))
    return found


def answer(response: falcon.Response, document: Any) -> None:
    response.content_type = falcon.MEDIA_JSON
    response.data = encode(document)


def answer_elements(
    request: falcon.Request, response: falcon.Response, elements: Sequence[bytes], next_offset: str | None = None
) -> None:
    """Send a page of ``elements``, which are already encoded as JSON."""
    response.content_type = falcon.MEDIA_JSON
    response.data = b'{"links":%b,"elements":[%b]}' % (encode(links(request, next_offset)), b",".join(elements))


def answer_page(
    request: falcon.Request,
    response: falcon.Response,
    found: Iterable[T],
    *,
    limit: int,
    element: Callable[[T], Any],
    offset: Callable[[T], str],
) -> None:
    """Send a page with the first items of ``found``, up to the limits. ``element`` and ``offset`` convert an item.

    Raises `Problem` (422) if the first element is larger than `MAX_ANSWER_BYTES`.
    """
    texts: list[bytes] = []
    left, last = MAX_ANSWER_BYTES, None
    for one in found:
        text = encode(element(one))
        left -= len(text) + 1
        if left < 0 and not texts:
            raise too_large(len(text), offset(one))
        if left < 0 or len(texts) == limit:
            break
        texts.append(text)
        last = one
    else:
        last = None
    answer_elements(request, response, texts, None if last is None else offset(last))


def one_more(page: Page) -> Page:
    """Return the page with one extra element, which shows whether another page follows."""
    return replace(page, limit=page.limit + 1)


def too_large(size_bytes: int, after: str) -> Problem:
    """Return the error for an element that is too large for a page. ``after``: the offset that skips this element."""
    return unprocessable(
        f"an element is too large ({size_bytes} of at most {MAX_ANSWER_BYTES} bytes): skip it with offset={after}"
    )


def _link(rel: str, request: falcon.Request, query: str) -> dict[str, str]:
    path = quote(request.path)
    return {"rel": rel, "href": f"{request.prefix}{path}{'?' if query else ''}{query}"}
