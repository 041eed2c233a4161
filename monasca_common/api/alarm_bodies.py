# SPDX-License-Identifier: Apache-2.0
"""Functions shared by the alarm resources: they decode bodies into typed values, and send pages of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import quote

import falcon
import msgspec

from monasca_common.alarms.address_keys import PLAIN, AddressKeys
from monasca_common.alarms.database import AlarmsDatabase, Slice
from monasca_common.alarms.errors import AlarmsError, BrokenRules, NameTaken, UnknownId
from monasca_common.api import paging
from monasca_common.api.body import read_json_body
from monasca_common.api.ingest import refusal
from monasca_common.api.problems import Problem, bad_request, conflict, not_found, unprocessable
from monasca_common.api.settings import ApiSettings
from monasca_common.models import json_text
from monasca_common.models.errors import Unreadable
from monasca_common.runtime.envelopes import EnvelopeWriter
from monasca_common.storage.errors import NotSupported

Document = TypeVar("Document")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class AlarmsContext:
    """Dependencies of the alarm resources. ``database`` is ``None`` if none is configured. ``now``: returns seconds
    since the epoch. ``transitions``: writes transitions in Avro."""

    settings: ApiSettings
    database: AlarmsDatabase | None
    now: Callable[[], float]
    keys: AddressKeys = PLAIN
    transitions: EnvelopeWriter | None = None

    def now_ms(self) -> int:
        return int(self.now() * 1000)

    def needed_database(self) -> AlarmsDatabase:
        if self.database is None:
            raise NotSupported("this API is configured without an alarms database")
        return self.database

    def document(self, request: falcon.Request, kind: type[Document]) -> Document:
        """Return the body as ``kind``. Raises `Problem`: 400 if it is not JSON, 422 if it does not match ``kind``."""
        body = read_json_body(request, self.settings)
        if not body:
            raise bad_request("the body is empty: send JSON")
        try:
            members = json_text.read(body)
        except Unreadable as error:
            raise bad_request(f"the body is not JSON: it {error}") from None
        try:
            # Conversions are permitted, because some clients send numbers and booleans as strings.
            document = msgspec.convert(members, kind, strict=False)
        except json_text.UNREADABLE as error:
            raise unprocessable(f"the request was refused: {error}") from None
        # msgspec also converts the string "null" to null, and null means that the member stays unchanged.
        for name, value in members.items():
            if value is not None and getattr(document, name, value) is None:
                raise unprocessable(f"the request was refused: {name} is the text {value!r}: write null")
        return document

    def answer_slice(
        self,
        request: falcon.Request,
        response: falcon.Response,
        found: Iterable[T],
        part: Slice,
        element: Callable[[falcon.Request, T], Any],
    ) -> None:
        """Send a page. ``found``: the rows of the slice, and one more row if another page follows."""
        paging.answer_page(
            request,
            response,
            enumerate(found, part.offset + 1),
            limit=part.limit,
            element=lambda numbered: element(request, numbered[1]),
            offset=lambda numbered: str(numbered[0]),
        )


class AlarmsResource:
    """A resource stored in the alarms database."""

    def __init__(self, context: AlarmsContext) -> None:
        self._context = context


def self_link(request: falcon.Request, path: str, own_id: str) -> dict[str, str]:
    return {"rel": "self", "href": f"{request.prefix}{path}/{quote(own_id, safe='')}"}


def of_alarms(error: AlarmsError) -> Problem:
    match error:
        case UnknownId():
            return not_found(str(error))
        case NameTaken():
            return conflict(str(error))
        case BrokenRules():
            return refusal(error.violations)
    raise error
