# SPDX-License-Identifier: Apache-2.0
"""Reads the topic of reports, from a given time to its end."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping

from monasca_common.audit import reports
from monasca_common.audit.reconciliation import AuditTotals
from monasca_common.audit.settings import AuditSettings
from monasca_common.kafka import Admin, GivenStarts, RetriableError, open_consumer
from monasca_common.kafka.errors import ConfigurationError
from monasca_common.kafka.message import TopicPartition
from monasca_common.kafka.settings import ConnectionSettings, ConsumerSettings
from monasca_common.runtime.shutdown import POLL_MESSAGES, POLL_SECONDS

_NAME = "monasca-audit-reader"  # this group never commits offsets


class ReportLog:
    """The topic of reports. Its methods raise `ConfigurationError` if the topic is missing, and `TransportError`."""

    def __init__(self, admin: Admin, connection: ConnectionSettings, settings: AuditSettings) -> None:
        self._admin = admin
        self._settings = settings
        self._topic = settings.topic
        self._consumer = ConsumerSettings(connection, (settings.topic,), _NAME, topic_check_seconds=0.0)
        self._totals = AuditTotals(settings)
        self.stopping = threading.Event()  # ends a read early; its totals are incomplete
        self._starts: Mapping[TopicPartition, int] = {}
        self._read_ms = float("-inf")  # the last read of all reports; the clock can be set back

    def since(self, since_ms: int, seconds: float) -> AuditTotals:
        """Return the totals of the reports from a time to the end of the log. Raises `RetriableError` after
        ``seconds``."""
        self._starts, self._totals = self._starts_at(since_ms), AuditTotals(self._settings)
        return self._read(seconds)

    def window(self, now_ms: int, seconds: float) -> AuditTotals:
        """Return the totals of a window that ends now. Reads only new reports; reads all again after an error, with new
        partitions, and before the totals have much more than the window. Raises `RetriableError` after ``seconds``."""
        read_ms, self._read_ms = self._read_ms, float("-inf")
        renewal_ms = round(self._settings.renewal_seconds * 1000)
        if abs(now_ms - read_ms) < renewal_ms and self._admin.partition_count(self._topic) == len(self._starts):
            totals = self._read(seconds)
        else:
            totals = self.since(self._settings.window_start(now_ms) - renewal_ms, seconds)
            read_ms = now_ms
        self._read_ms = read_ms
        return totals

    def _starts_at(self, since_ms: int) -> dict[TopicPartition, int]:
        count = self._admin.partition_counts().get(self._topic, 0)
        if not count:
            raise ConfigurationError(
                f"topic in group [audit] is {self._topic!r}, which does not exist: set enabled in group [audit], then "
                "`monasca-common init --execute` creates it"
            )
        partitions = [TopicPartition(self._topic, number) for number in range(count)]
        ends = self._admin.end_offsets(partitions)
        found = self._admin.offsets_for_times(dict.fromkeys(partitions, since_ms))
        return {each: ends[each] if (at := found[each]) is None else at for each in partitions}

    def _read(self, seconds: float) -> AuditTotals:
        """Add the reports up to the end of the log; the next call continues there, and may repeat reports after it."""
        starts, ends = self._starts, dict[TopicPartition, int]()
        deadline = time.monotonic() + seconds
        with open_consumer(self._consumer, partitions=starts, listener=GivenStarts(starts)) as consumer:
            while ends.keys() != starts.keys() and not self.stopping.is_set():
                batch = consumer.poll(POLL_MESSAGES, timeout=POLL_SECONDS)
                for error in batch.errors:
                    raise error
                for part in batch.partitions:
                    for report in filter(None, map(reports.decode, part.values)):
                        self._totals.add(report)
                ends |= {partition: end.next_offset for partition, end in consumer.take_ends().items()}
                if ends.keys() != starts.keys() and time.monotonic() > deadline:
                    raise RetriableError(
                        f"topic {self._topic} was not read within {seconds:g} s, so missing messages are "
                        "unknown: try again, or choose a shorter period"
                    )
        self._starts = ends
        return self._totals
