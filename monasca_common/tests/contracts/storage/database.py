# SPDX-License-Identifier: Apache-2.0
"""The access of contract tests to a database."""

import functools
import json
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, TypeVar

import sqlalchemy as sa

from monasca_common.models.rows import AlarmTransition, Event, LogEntry, Measurement
from monasca_common.models.series import Series
from monasca_common.storage.base import Capability, Kind, Storage, Writer
from monasca_common.storage.plugins import open_storage
from monasca_common.storage.settings import StorageSettings
from monasca_common.storage.sql import schema, tables
from monasca_common.tests.contracts.cluster import must_fail

NOW_MS = 1_790_000_000_123  # a time in September 2026 that is not a round number

T = TypeVar("T")
_ROWS = {Kind.ALARM_HISTORY: AlarmTransition, Kind.LOGS: LogEntry, Kind.EVENTS: Event}
_JSON_COLUMNS = {"dimensions", "fields", "payload", "metrics", "sub_alarms"}


class FixedClock:
    """A clock that returns ``now_ms`` until a test changes it."""

    def __init__(self, now_ms: int = NOW_MS) -> None:
        self.now_ms = now_ms

    def monotonic(self) -> float:
        return self.now_ms / 1000

    def time_ms(self) -> int:
        return self.now_ms

    def wait(self, lock: threading.Lock, timeout: float | None) -> bool:
        return lock.acquire(timeout=-1 if timeout is None else max(0.0, timeout))


class Database(ABC):
    """An empty database for the driver under test. Tests read and write it without the driver."""

    settings: StorageSettings

    def __init__(self, defer: Callable[..., object]) -> None:
        """``defer``: the ``addCleanup`` of the test."""
        self.clock = FixedClock()
        self._defer = defer

    def storage(self) -> Storage:
        return open_storage(self.settings, clock=self.clock)

    def writer(self) -> Writer:
        """Open a writer that is closed at the end of the test."""
        writer = self.storage().open_writer()
        self._defer(writer.close)
        return writer

    @abstractmethod
    def prepare(self) -> None:
        """Prepare the database for writes, as an operator does."""

    @abstractmethod
    def rows(self, kind: Kind) -> list[Any]:
        """Return all stored rows of a kind in any order: `Measurement`, or a pair of message id and row.

        JSON texts have the form of `canonical`.
        """


class SqlDatabase(Database):
    """A SQL database; ``settings.connection`` is the URL of a database without tables."""

    def __init__(self, defer: Callable[..., object], settings: StorageSettings) -> None:
        super().__init__(defer)
        self.settings = settings

    def prepare(self) -> None:
        self.storage().upgrade()

    def rows(self, kind: Kind) -> list[Any]:
        with schema.engine(self.settings.connection).connect() as connection:
            if kind is Kind.METRICS:
                return _measurements(connection)
            table = tables.metadata.tables[str(kind)]
            return [_keyed(kind, row._asdict()) for row in connection.execute(sa.select(table))]


def canonical(text: str | None) -> str | None:
    """Return JSON text in the form that tests compare."""
    return None if text is None else as_json(json.loads(text))


def as_json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


def _measurements(connection: sa.Connection) -> list[Measurement]:
    measurements, series = tables.measurements.c, tables.series.c
    # An outer join is used, so that a measurement without its series is also returned.
    joined = sa.outerjoin(tables.measurements, tables.series, measurements.series_id == series.id)
    rows = connection.execute(sa.select(tables.measurements, tables.series).select_from(joined))
    return [
        Measurement(
            Series(bytes(row.series_id), row.tenant, row.region, row.name, row.dimensions),
            row.time,
            float(row.value),
            None if row.value_meta is None else as_json(row.value_meta),
            row.version,
        )
        for row in rows
    ]


def _keyed(kind: Kind, row: dict[str, Any]) -> tuple[bytes, Any]:
    message_id, time_ms = bytes(row.pop("message_id")), row.pop("time")
    values = {name: as_json(value) if name in _JSON_COLUMNS else value for name, value in row.items()}
    return message_id, _ROWS[kind](time_ms=time_ms, **values)


def needs(capability: Capability) -> Callable[[T], T]:
    """Decorate a test, or a class with its tests, that needs a capability. With other drivers, the test must fail."""

    def decorate(item: Any) -> Any:
        if isinstance(item, type):
            for name, test in list(vars(item).items()):
                if name.startswith("test_"):
                    setattr(item, name, decorate(test))
            return item

        @functools.wraps(item)
        def run(self: Any) -> None:
            if capability in self.database.storage().capabilities:
                item(self)
                return
            must_fail(item, self, "a driver", capability)

        return run

    return decorate
