# SPDX-License-Identifier: Apache-2.0
"""Opens every connection to PostgreSQL (writers, readers, pipeline, migrations), with time limits.

The server cancels slow statements and reports why. If the server itself hangs, the connection is closed.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Generator, Mapping
from typing import Any, Self, TypeVar

import psycopg
from sqlalchemy import make_url
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.exc import ArgumentError

from monasca_common.kafka.errors import ConfigurationError
from monasca_common.storage.sql.bounds import Bounds, milliseconds

T = TypeVar("T")

_CONNECT_SECONDS = (2, 10)
# The server's time-out is shorter, so that it reports the reason and rolls the transaction back.
_GRACE_SECONDS = 1.0


class NoAnswer(psycopg.OperationalError):
    """The server did not respond in time. It may be frozen, in which case its own time-outs do not end the wait."""


class BoundedConnection(psycopg.Connection[Any]):
    """A connection whose waits end at ``deadline`` (monotonic) or ``each_seconds`` after a request."""

    deadline = float("inf")
    each_seconds = float("inf")

    def wait(self, gen: Generator[Any, Any, T], *args: Any, **kwargs: Any) -> T:
        return super().wait(self._until_deadline(gen), *args, **kwargs)

    def _until_deadline(self, gen: Generator[Any, Any, T]) -> Generator[Any, Any, T]:
        """Run ``gen`` until the deadline; psycopg resumes it ten times a second."""
        latest = min(self.deadline, time.monotonic() + self.each_seconds)
        try:
            waits_for = next(gen)
            while True:
                ready = yield waits_for
                if not ready and time.monotonic() > latest:
                    self.pgconn.finish()  # the connection cannot send even a rollback
                    raise NoAnswer("no response in time; the connection is closed")
                waits_for = gen.send(ready)
        except StopIteration as done:
            value: T = done.value
            return value

    def give(self, seconds: float) -> Self:
        """Set the deadline to ``seconds`` from now."""
        self.deadline = time.monotonic() + seconds + _GRACE_SECONDS
        return self


def connect_arguments(connection: str) -> dict[str, Any]:
    """Return the libpq arguments for a SQLAlchemy URL. Raises `ConfigurationError`, which does not quote the URL."""
    try:
        url = make_url(connection).set(drivername="postgresql+psycopg")
        arguments = PGDialect_psycopg().create_connect_args(url)[1]  # type: ignore[no-untyped-call]
        for host in (url.host or "").split(","):
            host.encode("idna")  # as when it is resolved, where the error would be unexpected
    except (ArgumentError, ValueError, TypeError):
        arguments = None
    if arguments is None or "@" in (url.host or ""):  # part of a password in which @ is not written as %40
        raise ConfigurationError(
            "connection in group [database] is not a PostgreSQL URL (it is a secret and is not shown): write "
            "postgresql://user:password@host/database, with %40 for an @ in the password"
        )
    return {name: value for name, value in arguments.items() if name != "context"}


def open_connection(
    arguments: Mapping[str, Any],
    bounds: Bounds | None,
    *,
    application: str,
    session: Mapping[str, str] | None = None,
    **options: Any,
) -> BoundedConnection:
    """Open a connection. ``arguments``: the result of `connect_arguments`; they override the arguments of this module.
    ``session``: additional settings of the session. ``options``: arguments of ``psycopg.connect``. ``bounds``: ``None``
    for a migration, which has no time limit.

    Raises psycopg's errors.
    """
    shortest, longest = _CONNECT_SECONDS
    settings = {"timezone": "UTC", **(session or {})}
    defaults: dict[str, Any] = {
        "client_encoding": "UTF8",  # by default, that of the database, but COPY sends texts in UTF-8
        "connect_timeout": longest,
        "application_name": application,
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
    }
    if bounds is not None:
        settings |= bounds.settings()
        defaults["connect_timeout"] = max(shortest, min(longest, round(bounds.statement_seconds)))
        defaults["tcp_user_timeout"] = int(milliseconds(bounds.statement_seconds))
    own = " ".join(f"-c {name}={value}" for name, value in settings.items())
    given = f"{own} {arguments.get('options', '')}".strip()
    try:
        connection = BoundedConnection.connect(**{**defaults, **arguments, "options": given}, **options)
    except psycopg.Error as error:
        # psycopg's frame refers to each host's error, whose traceback refers to that frame, and thus to its callers.
        traceback.clear_frames(error.__traceback__)
        raise error.with_traceback(None)  # noqa: B904 - the same error
    if bounds is not None:
        connection.each_seconds = bounds.statement_seconds + _GRACE_SECONDS
    return connection
