# SPDX-License-Identifier: Apache-2.0
"""``GET /openapi.json``: the file ``openapi.json``, adapted to the settings and plug-ins.

Tests compare it with the routes, rules and queries.
"""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from typing import Any

import falcon
import msgspec

from monasca_common.alarms import notification_methods
from monasca_common.api.settings import ApiSettings

PATH = "/openapi.json"


class OpenApi:
    def __init__(self, settings: ApiSettings) -> None:
        self._data = msgspec.json.encode(_document(settings))

    def on_get(self, _request: falcon.Request, response: falcon.Response) -> None:
        response.content_type = falcon.MEDIA_JSON
        response.data = self._data


def _document(settings: ApiSettings) -> dict[str, Any]:
    document: dict[str, Any] = msgspec.json.decode(Path(__file__).with_name("openapi.json").read_bytes())
    info, components = document["info"], document["components"]
    info["version"] = importlib.metadata.version("monasca-common")
    info["description"] = info["description"].format(max_body_bytes=settings.max_body_bytes)
    components["schemas"]["NotificationMethodType"]["enum"] = list(notification_methods.types())
    if settings.status.port is not None:
        del document["paths"]["/metrics"]  # the status port serves it
    if settings.auth_strategy == "noauth":
        del document["security"], components["securitySchemes"]
    return document
