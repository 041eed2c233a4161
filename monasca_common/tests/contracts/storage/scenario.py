# SPDX-License-Identifier: Apache-2.0
"""The helpers and rows of the contract's tests."""

import functools
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from monasca_common.kafka.message import TopicPartition
from monasca_common.models.rows import AlarmTransition, Event, LogEntry, Measurement
from monasca_common.models.series import Series, series_id
from monasca_common.storage.base import Claim, Kind, Rows, Writer, Written
from monasca_common.tests.contracts.storage.database import NOW_MS, Database, as_json

if TYPE_CHECKING:
    from testtools import TestCase
else:
    # The contracts are mixed into a test case of a driver; the test runner must not collect them directly.
    TestCase = object

GROUP = "1_group"
TOPIC = "topic"
TOPIC_ID = "topic-id"
PARTITION = TopicPartition(TOPIC, 0)


def make_series(name: str = "cpu.user", tenant: str = "tenant", **dimensions: str) -> Series:
    return Series(series_id(tenant, "region", name, dimensions), tenant, "region", name, dimensions)


def measurement(
    number: int = 0,
    *,
    series: Series | None = None,
    value: float | None = None,
    value_meta: str | None = None,
    version: int = NOW_MS,
    time_ms: int = NOW_MS,
) -> Measurement:
    """Return a measurement. ``number`` selects the series, and is the default value."""
    series = series or make_series(host=f"host-{number}")
    return Measurement(series, time_ms, float(number) if value is None else value, value_meta, version)


def row(kind: Kind, number: int = 0, *, time_ms: int = NOW_MS, text: str = "") -> Any:
    """Return a row of any kind, which contains ``text``."""
    if kind is Kind.METRICS:
        return measurement(number, value_meta=as_json({"text": text}) if text else None, time_ms=time_ms)
    if kind is Kind.ALARM_HISTORY:
        metrics = as_json([{"name": "cpu.user", "dimensions": {"host": f"host-{number}"}}])
        states = ("OK", "ALARM", "HIGH", f"reason {text}")
        return AlarmTransition(
            time_ms, "tenant", f"alarm-{number}", "definition", "name", *states, "http://link", None, metrics, "[]"
        )
    if kind is Kind.LOGS:
        return LogEntry(time_ms, "tenant", "region", f"line {number} {text}", as_json({"host": "a"}), as_json({"n": 1}))
    return Event(time_ms, "tenant", "compute.instance.create", as_json({"number": number, "text": text}), as_json({}))


def message_id(number: int) -> bytes:
    return b"message-%d" % number


def claim(start: int, end: int, **changes: Any) -> Claim:
    fields = {"group": GROUP, "topic": TOPIC, "partition": 0, "topic_id": TOPIC_ID, **changes}
    return Claim(start=start, end=end, **fields)


class Scenario(TestCase):  # type: ignore[misc, unused-ignore]
    """Base of the contracts. The driver's ``setUp`` sets ``database``, which is prepared."""

    database: Database

    @functools.cached_property
    def writer(self) -> Writer:
        return self.database.writer()

    def write(
        self,
        writer: Writer,
        kind: Kind,
        values: Sequence[Any],
        start: int = 0,
        *,
        ids: Iterable[bytes] | None = None,
        by_id: Sequence[bool] = (),
        **changes: Any,
    ) -> Written:
        """Write rows at offsets from ``start`` on, claimed without gaps. Message ids are derived from the offsets."""
        offsets = range(start, start + len(values))
        ids = tuple(map(message_id, offsets)) if ids is None else tuple(ids)
        return writer.write(claim(start, start + len(values), **changes), Rows(kind, values, offsets, ids, by_id))

    def stored(self, kind: Kind) -> list[Any]:
        """Return the stored rows, ordered by time; rows of one time have a fixed order."""
        rows = self.database.rows(kind)
        if kind is Kind.METRICS:
            return sorted(rows, key=lambda each: (each.time_ms, each.series.id))
        return sorted(rows)

    def next_offset(self, writer: Writer, topic_id: str | None = TOPIC_ID) -> int | None:
        return writer.next_offsets(GROUP, {PARTITION: topic_id}).get(PARTITION)
