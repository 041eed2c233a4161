# SPDX-License-Identifier: Apache-2.0
"""``GET /`` and ``GET /v2.0``: the versions of the API; no token is required."""

from __future__ import annotations

from typing import Any

import falcon

from monasca_common.api import paging

_UPDATED = "2014-07-18T03:25:02.423Z"


class Versions:
    def on_get(self, request: falcon.Request, response: falcon.Response) -> None:
        links = [{"rel": "self", "href": f"{request.prefix}/"}]
        paging.answer(response, {"links": links, "elements": [_version(request)]})


class Version:
    def on_get(self, request: falcon.Request, response: falcon.Response) -> None:
        paging.answer(response, _version(request))


def _version(request: falcon.Request) -> dict[str, Any]:
    return {
        "id": "v2.0",
        "links": [{"rel": "self", "href": f"{request.prefix}/v2.0"}],
        "status": "CURRENT",
        "updated": _UPDATED,
    }
