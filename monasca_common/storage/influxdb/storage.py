# SPDX-License-Identifier: Apache-2.0
"""The driver ``influxdb``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from monasca_common.kafka.clock import Clock, SystemClock
from monasca_common.kafka.failpoints import fail_point
from monasca_common.kafka.message import TopicPartition
from monasca_common.models.seen import Seen
from monasca_common.storage import fence, retention
from monasca_common.storage.base import Capability, Claim, Kind, Rows, Storage, TopicIds, Writer, Written
from monasca_common.storage.errors import NotSupported, RowsRefused
from monasca_common.storage.http_client import check_credentials, send
from monasca_common.storage.influxdb.client import Address, InfluxClient, address
from monasca_common.storage.influxdb.lines import NotWritable, measurement_line, series_head, transition_line
from monasca_common.storage.settings import StorageSettings

_MAX_SERIES = 200_000  # lines of about 300 bytes each


class InfluxdbStorage(Storage):
    """InfluxDB 1.x has no transactions, so rows cannot be stored exactly once.

    Rows are written at least once. A row that is read again after a crash overwrites itself, because the key of a point
    is its measurement, tags and time, and alarm ids are tags. The last write is kept, regardless of its version, and
    every row counts as stored. No offsets are stored, so a consumer starts at its committed offset in Kafka.
    """

    capabilities = frozenset({Capability.MANY_WRITERS})
    kinds = frozenset({Kind.METRICS, Kind.ALARM_HISTORY})

    def __init__(self, settings: StorageSettings, clock: Clock | None = None) -> None:
        """Raises `ConfigurationError`."""
        self.settings = settings
        self._address = address(settings.connection)
        check_credentials(self._address, insecure_allowed=settings.allow_insecure_credentials)
        self._clock = clock or SystemClock()

    def open_writer(self) -> Writer:
        return InfluxdbWriter(self._address, self.settings, self._clock)

    def upgrade(self) -> None:
        """Create the database; it has no schema."""
        client = InfluxClient(self._address, timeout_seconds=self.settings.write_timeout_seconds)
        try:
            client.create_database()
        finally:
            client.close()


class InfluxdbWriter(Writer):
    def __init__(self, where: Address, settings: StorageSettings, clock: Clock) -> None:
        """Raises `StorageUnavailable` if a write is impossible."""
        self._settings = settings
        self._clock = clock
        self._heads: Seen[bytes, str] = Seen(_MAX_SERIES)
        self._client = InfluxClient(where, timeout_seconds=settings.write_timeout_seconds)
        try:
            self._client.write(())
        except BaseException:
            self._client.close()
            raise

    def next_offsets(self, group: str, partitions: TopicIds) -> dict[TopicPartition, int]:
        """Return an empty result, because only Kafka's committed offsets exist."""
        return {}

    def begin(self, group: str, starts: Mapping[TopicPartition, int], topic_ids: TopicIds) -> dict[TopicPartition, int]:
        """Return the start offsets without storing them."""
        return dict(starts)

    def write(self, claim: Claim, rows: Rows) -> Written:
        """Write rows like `Writer.write`, except that if InfluxDB itself refuses some rows, others of the call may be
        stored. Writing those again overwrites them."""
        fence.check_call(claim, rows)
        if rows.kind not in InfluxdbStorage.kinds:
            raise NotSupported(f"InfluxDB stores only metrics and alarm history, not {rows.kind}")
        lines, reasons = self._lines(rows)
        times = [row.time_ms for row in rows.values]
        reasons |= retention.refused(times, retention.window(self._settings, rows.kind, self._clock.time_ms()))
        if reasons:
            raise RowsRefused(reasons)
        if reasons := send(lines, self._client.write):
            raise RowsRefused(reasons)
        fail_point("storage.after_commit")
        return Written(stored=len(lines))

    def accounted(self, claim: Claim) -> None:
        """Do nothing, because only Kafka stores offsets."""
        fence.check_order(claim)

    def close(self) -> None:
        self._client.close()

    def _lines(self, rows: Rows) -> tuple[list[bytes], dict[int, str]]:
        lines: list[bytes] = []
        reasons: dict[int, str] = {}
        for position, row in enumerate(rows.values):
            try:
                if rows.kind is Kind.METRICS:
                    line = measurement_line(self._heads.find(row.series.id) or self._head(row.series), row)
                else:
                    line = transition_line(row, rows.message_ids[position])
                lines.append(line.encode())
            except UnicodeEncodeError:
                reasons[position] = "it contains an unpaired surrogate, which cannot be encoded"
            except NotWritable as error:
                reasons[position] = str(error)
        return lines, reasons

    def _head(self, series: Any) -> str:
        head = series_head(series)
        self._heads.keep(series.id, head, len(head))
        return head
