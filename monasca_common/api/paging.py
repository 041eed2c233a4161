# SPDX-License-Identifier: Apache-2.0
"""The shape of every list: links, and the elements of one page, bounded in number and in bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar
from urllib.parse import quote, unquote_plus

import falcon
import msgspec

from monasca_common.api.problems import Problem, unprocessable
from monasca_common.storage.reader import PageOf

PAGE_LIMIT = 10_000  # elements of an answer; rows, for measurements and statistics
MAX_ANSWER_BYTES = 16 * 1024 * 1024  # of the elements of an answer, which takes twice this memory

T = TypeVar("T")
encode = msgspec.json.encode


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
    response.data = encode(document)


def answer_elements(
    request: falcon.Request, response: falcon.Response, elements: Sequence[bytes], next_offset: str | None = None
) -> None:
    """``elements`` are JSON."""
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
    """As many of what is found as may be shown at once. ``element`` makes the shown ones, ``offset`` their places.

    Raises `Problem` (422) if the first one alone is larger than `MAX_ANSWER_BYTES`.
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


def one_more(page: PageOf) -> PageOf:
    """Asks for one more than is shown, which says whether a page follows."""
    return PageOf(page.limit + 1, page.after)


def too_large(size_bytes: int, behind: str) -> Problem:
    """An element that no page can hold. ``behind``: the offset with which the list goes on."""
    return unprocessable(
        f"an element has {size_bytes} bytes, and an answer may have {MAX_ANSWER_BYTES}: skip it with offset={behind}"
    )


def _link(rel: str, request: falcon.Request, query: str) -> dict[str, str]:
    path = quote(request.path)
    return {"rel": rel, "href": f"{request.prefix}{path}{'?' if query else ''}{query}"}
