# SPDX-License-Identifier: Apache-2.0
"""Requests to servers on this machine."""

import contextlib
import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Mapping

from monasca_common.tests.waiting import PATIENCE_SECONDS


def fetch(url, body=None, **headers):
    """Return the status and the text of the response, also of an error. Raises `OSError` without a response."""
    request = urllib.request.Request(url, body, {name.replace("_", "-"): value for name, value in headers.items()})
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def request(
    port: int, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None
) -> tuple[int, dict[str, str], bytes]:
    """Return status, headers (names in lower case) and body. ``body``: bytes, or an object that is sent as JSON."""
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_SECONDS)) as connection:
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        kind = {} if data is None else {"Content-Type": "application/json"}
        connection.request(method, path, data, {**kind, **(headers or {})})
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.headers.items()}, answer.read()


def is_ok(url):
    """Return whether the server responds with status 200."""
    try:
        return fetch(url)[0] == 200
    except (OSError, http.client.HTTPException):  # the server can end during the response
        return False
