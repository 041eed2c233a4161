# SPDX-License-Identifier: Apache-2.0
"""A reader of the topic of reports, from a given time to the end of the topic."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

from monasca_common.audit import reports
from monasca_common.audit.reports import AuditReport
from monasca_common.kafka import Admin, GivenStarts, RetriableError, open_consumer
from monasca_common.kafka.errors import ConfigurationError
from monasca_common.kafka.message import TopicPartition
from monasca_common.kafka.settings import ConnectionSettings, ConsumerSettings
from monasca_common.runtime.polling import POLL_MESSAGES, POLL_SECONDS

_NAME = "monasca-audit-reader"  # this group never commits offsets


class ReportLog:
    """The topic of reports. ``starts``: the start offset of each of its partitions."""

    def __init__(self, connection: ConnectionSettings, topic: str, starts: Mapping[TopicPartition, int]) -> None:
        self._settings = ConsumerSettings(connection, (topic,), _NAME, topic_check_seconds=0.0)
        self._starts = starts

    def read(self, seconds: float) -> Iterator[AuditReport]:
        """Yield the reports up to the end of the log; the next call continues there, and may repeat reports after it.

        Raises `RetriableError` after ``seconds``, and `TransportError`; the next call then reads the same reports.
        """
        starts, ends = self._starts, dict[TopicPartition, int]()
        deadline = time.monotonic() + seconds
        with open_consumer(self._settings, partitions=starts, listener=GivenStarts(starts)) as consumer:
            while ends.keys() != starts.keys():
                batch = consumer.poll(POLL_MESSAGES, timeout=POLL_SECONDS)
                for error in batch.errors:
                    raise error
                for part in batch.partitions:
                    yield from filter(None, map(reports.decode, part.values))
                ends |= {partition: end.next_offset for partition, end in consumer.take_ends().items()}
                if ends.keys() != starts.keys() and time.monotonic() > deadline:
                    raise RetriableError(
                        f"topic {self._settings.topics[0]} was not read within {seconds:g} s, so missing messages are "
                        "unknown: try again, or choose a shorter period"
                    )
        self._starts = ends


def open_report_log(admin: Admin, connection: ConnectionSettings, topic: str, since_ms: int) -> ReportLog:
    """Open the log of reports, from this time on. Raises `ConfigurationError` if the topic is missing, and
    `TransportError`."""
    count = admin.partition_counts().get(topic, 0)
    if not count:
        raise ConfigurationError(
            f"topic in group [audit] is {topic!r}, which does not exist: set enabled in group [audit], then "
            "`monasca-common init --execute` creates it"
        )
    partitions = [TopicPartition(topic, number) for number in range(count)]
    ends = admin.end_offsets(partitions)
    found = admin.offsets_for_times(dict.fromkeys(partitions, since_ms))
    starts = {each: ends[each] if (at := found[each]) is None else at for each in partitions}
    return ReportLog(connection, topic, starts)
