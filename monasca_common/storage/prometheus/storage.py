# SPDX-License-Identifier: Apache-2.0
"""The driver ``prometheus``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any

from monasca_common.kafka.clock import Clock, SystemClock
from monasca_common.kafka.errors import ConfigurationError
from monasca_common.kafka.failpoints import fail_point
from monasca_common.kafka.message import TopicPartition
from monasca_common.models.rows import Measurement
from monasca_common.models.seen import Seen
from monasca_common.models.series import Series
from monasca_common.models.write_request import encoded_labels, encoded_row
from monasca_common.storage import fence, retention
from monasca_common.storage.base import Capability, Claim, Kind, Rows, Storage, StorageStatus, Writer, Written
from monasca_common.storage.errors import NotSupported, RowsRefused
from monasca_common.storage.fence import StoredNext
from monasca_common.storage.http_client import check_credentials, send
from monasca_common.storage.plugins import open_storage
from monasca_common.storage.prometheus.labels import labels_of
from monasca_common.storage.prometheus.receiver import Receiver, ReceiverUrl, address
from monasca_common.storage.reduction import measurement_rows, reduced
from monasca_common.storage.settings import StorageSettings, dialect_of

_MAX_SERIES = 100_000  # about 500 bytes each
_POSITIONS = ("sqlite", "postgresql")
# HTTP drops spaces around the value of a header, so the sample would be stored for another tenant.
_HEADER_VALUE = re.compile("[!-~]([ -~]*[!-~])?")


class PrometheusStorage(Storage):
    """A receiver of remote write has no transactions, so offsets are stored in a SQL database, under the fence, after
    the receiver has acknowledged the rows.

    After a crash in between, rows are sent again. The receiver stores a sample once, by its series and time, if it
    accepts samples that are not newer than the newest one: its window must exceed the time until a repeat.
    """

    kinds = frozenset({Kind.METRICS})

    def __init__(self, settings: StorageSettings, clock: Clock | None = None) -> None:
        """Raises `ConfigurationError`."""
        self.settings = settings
        self._address = address(settings.connection)
        check_credentials(self._address, insecure_allowed=settings.allow_insecure_credentials)
        url = settings.positions_connection or ""
        if (dialect := dialect_of(url)) not in _POSITIONS:
            raise ConfigurationError(
                "driver in group [storage] is prometheus, which needs positions_connection in group [database]: write "
                "the URL of a SQLite file (one writing process) or a PostgreSQL database, such as "
                "sqlite:////var/lib/monasca/positions.sqlite"
            )
        self._clock = clock or SystemClock()
        try:
            self._positions = open_storage(replace(settings, driver=dialect, connection=url), clock=self._clock)
        except ConfigurationError as error:  # its text names the option connection
            raise ConfigurationError(f"positions_{error}") from None
        self.capabilities = self._positions.capabilities & {Capability.OFFSETS, Capability.MANY_WRITERS}
        self._is_checked = False

    def open_writer(self) -> Writer:
        """Open a writer. Raises `UnsafeReceiver`, and the errors of the database that stores the offsets."""
        receiver = Receiver(self._address, timeout_seconds=self.settings.write_timeout_seconds)
        try:
            if not self._is_checked:
                receiver.check_window()
                self._is_checked = True
            positions = self._positions.open_writer()
        except BaseException:
            receiver.close()
            raise
        return PrometheusWriter(self._address, receiver, positions, self.settings, self._clock)

    def upgrade(self) -> None:
        self._positions.upgrade()

    def status(self) -> StorageStatus:
        return self._positions.status()


class PrometheusWriter(Writer):
    def __init__(
        self, where: ReceiverUrl, receiver: Receiver, positions: Writer, settings: StorageSettings, clock: Clock
    ) -> None:
        self._as_header = where.tenant_as_header
        self._receiver = receiver
        self._positions = positions
        # A sample far in the future would make the receiver refuse all others as too old.
        future_seconds = min(settings.future_tolerance_seconds, int(where.window_seconds / 2))
        self._limits = replace(settings, future_tolerance_seconds=future_seconds)
        self._clock = clock
        self._labels: Seen[bytes, bytes] = Seen(_MAX_SERIES)

    def next_offsets(self, group: str, partitions: Any) -> dict[TopicPartition, int]:
        return self._positions.next_offsets(group, partitions)

    def begin(self, group: str, starts: Any, topic_ids: Any) -> dict[TopicPartition, int]:
        return self._positions.begin(group, starts, topic_ids)

    def write(self, claim: Claim, rows: Rows) -> Written:
        """Send rows, and then store the offset, like `Writer.write`, except that if some rows are refused, others of
        the call may be stored. Sending those again stores no sample twice."""
        fence.check_call(claim, rows)
        if rows.kind is not Kind.METRICS:
            raise NotSupported(f"a receiver of remote write stores only metrics, not {rows.kind}")
        start = self._first_new(claim)
        new = rows.between(start, max(start, claim.end))
        skipped = len(rows) - len(new)
        written, reasons = self._send_rows(new.values)
        if reasons:
            raise RowsRefused(reasons, first=skipped)
        fail_point("storage.before_commit")
        self._positions.accounted(claim)
        fail_point("storage.after_commit")
        return replace(written, skipped=skipped)

    def accounted(self, claim: Claim) -> None:
        self._positions.accounted(claim)

    def reset_offsets(self, group: str, starts: Any, topic_ids: Any) -> dict[TopicPartition, int]:
        return self._positions.reset_offsets(group, starts, topic_ids)

    def close(self) -> None:
        self._receiver.close()
        self._positions.close()

    def _first_new(self, claim: Claim) -> int:
        partition = claim.topic_partition
        stored = self._positions.begin(claim.group, {partition: claim.start}, {partition: claim.topic_id})
        return fence.first_new(claim, StoredNext(stored[partition], claim.topic_id))

    def _send_rows(self, values: Sequence[Measurement]) -> tuple[Written, dict[int, str]]:
        """Send rows in order of time. Return the counts, and the reasons of refused rows by position."""
        allowed = retention.window(self._limits, Kind.METRICS, self._clock.time_ms())
        reasons = retention.refused([row.time_ms for row in values], allowed)
        kept = reduced((*row, position) for position, row in enumerate(measurement_rows(values)))
        repeated, conflicting = kept.repeated, kept.conflicting
        order = [position for *_, position in sorted(kept.rows, key=itemgetter(1))]  # by time
        encoded: dict[int, bytes] = {}
        for position in order:
            row = values[position]
            try:
                labels = self._labels.find(row.series.id) or self._encoded_labels(row.series)
                encoded[position] = encoded_row(labels, row)
            except UnicodeEncodeError:
                reasons[position] = "it has an unpaired surrogate, which cannot be encoded"
            if self._as_header and not _HEADER_VALUE.fullmatch(row.series.tenant):
                reasons[position] = "its tenant has a character that the header X-Scope-OrgID cannot have"
        if reasons:
            return Written(), reasons
        refused: dict[int, str] = {}
        tenants = [row.series.tenant if self._as_header else "" for row in values]
        for tenant, group in groupby(sorted(order, key=tenants.__getitem__), key=tenants.__getitem__):
            positions = list(group)
            samples = [encoded[position] for position in positions]
            found = send(samples, partial(self._receiver.write, tenant))
            refused |= {positions[place]: reason for place, reason in found.items()}
        for position, reason in refused.items():
            row = values[position]
            has = self._receiver.has(labels_of(row.series, with_tenant=not self._as_header), row, reason)
            repeated += has is True
            conflicting += has is False
            if has is None:
                reasons[position] = reason
        stored = len(values) - repeated - conflicting
        return Written(stored, repeated, conflicting), reasons

    def _encoded_labels(self, series: Series) -> bytes:
        labels = encoded_labels(labels_of(series, with_tenant=not self._as_header))
        self._labels.keep(series.id, labels, len(labels))
        return labels
