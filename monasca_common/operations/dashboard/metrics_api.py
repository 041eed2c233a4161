# SPDX-License-Identifier: Apache-2.0
"""A client of the public API for charts: it uses the user's token, and one time-out for a whole page."""

from __future__ import annotations

import http.client
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import msgspec

from monasca_common.operations.dashboard.settings import DashboardSettings

_MAX_BYTES = 32 * 1024 * 1024
_MAX_PAGES = 20
_PAGE_SECONDS = 10.0  # for all requests of a page
_SHOWN_CHARACTERS = 300


class ApiUnavailable(Exception):
    """The API gave no answer. The text is shown on the page."""


@dataclass(frozen=True, slots=True)
class ApiList:
    """``is_whole``: whether these are all elements."""

    elements: tuple[Mapping[str, Any], ...]
    is_whole: bool


class MetricsApi:
    """The API at one URL."""

    def __init__(self, settings: DashboardSettings) -> None:
        assert settings.api_url is not None, "charts need it"
        self._url = settings.api_url.rstrip("/")
        # No proxy of the environment, because it would see the token.
        handlers: list[urllib.request.BaseHandler] = [_NoRedirect(), urllib.request.ProxyHandler({})]
        if self._url.startswith("https:"):
            context = ssl.create_default_context(cafile=settings.api_ca_file)
            handlers.append(urllib.request.HTTPSHandler(context=context))
        self._opener = urllib.request.build_opener(*handlers)

    def reader(self, token: str | None) -> ApiReader:
        return ApiReader(self._opener, self._url, token, time.monotonic() + _PAGE_SECONDS)


class ApiReader:
    """Reads the data of one page until ``deadline`` (monotonic seconds)."""

    def __init__(self, opener: urllib.request.OpenerDirector, url: str, token: str | None, deadline: float) -> None:
        self._opener = opener
        self._url = url
        self._headers = {"Accept": "application/json", **({"X-Auth-Token": token} if token else {})}
        self._deadline = deadline

    def find(self, path: str, parameters: Mapping[str, str], *, pages: int = 1) -> ApiList:
        """Return the elements on the first pages of a list. Raises `ApiUnavailable`."""
        found: list[Mapping[str, Any]] = []
        offset: dict[str, str] = {}
        for _ in range(min(pages, _MAX_PAGES)):
            answer = self._get(f"{path}?{urlencode({**parameters, **offset})}")
            found += answer.elements
            following = next((link["href"] for link in answer.links if link.get("rel") == "next"), "")
            if not following:
                return ApiList(tuple(found), is_whole=True)
            offset = {"offset": _offset_of(following)}
        return ApiList(tuple(found), is_whole=False)

    def _get(self, path: str) -> _ListAnswer:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise ApiUnavailable("The API takes too long: choose a shorter time, or fewer series.")
        request = urllib.request.Request(f"{self._url}{path}", headers=self._headers)
        try:
            with self._opener.open(request, timeout=left) as answer:
                body = answer.read(_MAX_BYTES + 1)
        except urllib.error.HTTPError as error:
            with error:
                raise ApiUnavailable(_refusal(error)) from None
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            raise ApiUnavailable(f"The API at {self._url} does not answer: {reason}") from None
        if len(body) > _MAX_BYTES:
            raise ApiUnavailable("The API's answer is too large: choose a shorter time, or fewer series.")
        try:
            return msgspec.json.decode(body, type=_ListAnswer)
        except msgspec.MsgspecError:
            raise ApiUnavailable(f"The server at {self._url} is not the Monasca API: correct api_url.") from None


class _ListAnswer(msgspec.Struct):
    elements: list[dict[str, Any]]
    links: list[dict[str, str]] = []


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Refuses redirects, so that tokens are sent only to the API."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def _refusal(error: urllib.error.HTTPError) -> str:
    if error.code == 401:
        return "The API refuses the token of this login (401): log in as a user with access to metrics."
    try:
        answer = msgspec.json.decode(error.read(_MAX_BYTES), type=dict[str, dict[str, Any]])
        message = next(iter(answer.values())).get("message", "")
    except (msgspec.MsgspecError, StopIteration, OSError):
        message = ""
    return f"The API refuses the request ({error.code}): {str(message)[:_SHOWN_CHARACTERS]}"


def _offset_of(href: str) -> str:
    return parse_qs(urlsplit(href).query).get("offset", [""])[0]
