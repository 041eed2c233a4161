# SPDX-License-Identifier: Apache-2.0
"""The part of Kibana's search that the public plugin uses, served from rows of the persister.

The plugin looks for its logs and events in Elasticsearch, to which old installations copied them. Here they are in the
database, so a hit proves that the whole path works: API, Kafka, persister, database.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any

import sqlalchemy as sa

from monasca_common.storage.sql.schema import engine
from monasca_common.storage.sql.tables import events, logs
from monasca_common.tests.served import body_of, http_server, respond, serve

Hits = list[dict[str, Any]]


def find(connection: sa.Connection, field: str, text: str) -> Hits:
    """Return the documents whose ``field`` matches ``text``, in Elasticsearch's format."""
    if field == "event_type":
        rows = connection.execute(sa.select(events).where(events.c.event_type == text.strip()))
        return [_hit(row, "event_type") for row in rows.mappings()]
    if field == "message":
        rows = connection.execute(sa.select(logs).where(logs.c.message.contains(text, autoescape=True)))
        return [_hit(row, "message") for row in rows.mappings()]
    raise ValueError(f"the search for {field!r} is not supported: the plugin searches for message and event_type")


def query_of(body: str) -> tuple[str, str]:
    """Return the field and the text of the only query in the body of a multi search, whose second line is the query."""
    lines = [line for line in body.splitlines() if line.strip()]
    [(field, text)] = json.loads(lines[1])["query"]["match"].items()
    return field, text


@contextmanager
def serving(connection: str) -> Iterator[int]:
    """Serve searches in the database, and yield the port."""
    database = engine(connection)

    def answer(handler: BaseHTTPRequestHandler) -> None:
        with database.connect() as opened:
            hits = find(opened, *query_of(body_of(handler).decode()))
        found = json.dumps({"responses": [{"hits": {"hits": hits}}]}).encode()
        respond(handler, body=found, headers={"Content-Type": "application/json"})

    server = http_server(answer)
    close = serve(server)
    try:
        yield server.server_port
    finally:
        close()


def _hit(row: Mapping[Any, Any], shown: str) -> dict[str, Any]:
    return {"_source": {"tenant": row["tenant"], shown: row[shown]}}
