# SPDX-License-Identifier: Apache-2.0
"""The counter of a log, which reads all records and counts them.

It reports the offsets of each bucket of event time, and the offsets of records that repeat a message id within the
bucket. Offsets are committed after the reports about them are acknowledged. After a start, the counter rereads the
records of one bucket plus the grace period to collect their ids. Records that are counted again do not change the sets
of offsets.
"""

from __future__ import annotations

import logging
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import structs

from monasca_common.audit import reports
from monasca_common.audit.reports import AHEAD_MS, AuditCount, AuditReport, bucket_of
from monasca_common.audit.runs import Runs, runs_of
from monasca_common.audit.settings import AuditSettings
from monasca_common.kafka import Admin, KafkaConsumer, KafkaProducer, RebalanceListener, Record, portions
from monasca_common.kafka.clock import Clock, SystemClock
from monasca_common.kafka.failpoints import fail_point
from monasca_common.kafka.message import MESSAGE_ID_HEADER, PartitionBatch, TopicPartition
from monasca_common.runtime.shutdown import POLL_MESSAGES, POLL_SECONDS

LOG = logging.getLogger(__name__)

_MAX_IDS = 2_000_000  # 200 bytes each
_MAX_RUNS = 5000  # the maximum in one report, because a report must fit into a message

_Key = tuple[str, int, int]  # topic, start of the bucket, partition


class LogCounts:
    """The counts since the last report, and the message ids of buckets that may still get messages."""

    def __init__(self, settings: AuditSettings) -> None:
        self._bucket_seconds = settings.bucket_seconds
        self._kept_ms = (settings.bucket_seconds + settings.grace_seconds) * 1000
        self._offsets: dict[_Key, list[int]] = defaultdict(list)
        self._duplicates: dict[_Key, list[int]] = defaultdict(list)
        self._ids: dict[tuple[int, str], dict[bytes, tuple[int, int]]] = defaultdict(dict)
        self._number_of_ids = 0

    def add(self, part: PartitionBatch, now_ms: int) -> None:
        topic, partition = part.topic_partition
        for offset, at_ms, headers in zip(part.offsets, part.timestamps, part.headers, strict=True):
            bucket_ms = bucket_of(now_ms if at_ms is None else at_ms, self._bucket_seconds)
            self._offsets[topic, bucket_ms, partition].append(offset)
            message_id = next((each for name, each in headers if name == MESSAGE_ID_HEADER and each), None)
            if message_id is not None and bucket_ms <= now_ms + AHEAD_MS:
                self._check_id(message_id, bucket_ms, topic, (partition, offset))

    def take(self, now_ms: int) -> Iterator[AuditCount]:
        """Yield the counts since the last call, in parts that each fit into a report."""
        offsets, self._offsets = self._offsets, defaultdict(list)
        duplicates, self._duplicates = self._duplicates, defaultdict(list)
        for (topic, bucket_ms, partition), runs in _pieces(offsets):
            yield AuditCount(topic, bucket_ms, offsets={partition: runs})
        for (topic, bucket_ms, partition), runs in _pieces(duplicates):
            yield AuditCount(topic, bucket_ms, duplicates={partition: runs})
        for key in [each for each in self._ids if each[0] + self._kept_ms < now_ms]:
            self._forget(key)

    def _check_id(self, message_id: bytes, bucket_ms: int, topic: str, place: tuple[int, int]) -> None:
        """Record a duplicate. Among the records with the same id, the one with the lowest partition and offset is never
        a duplicate, so that another counter, or this counter after a crash, reports the same duplicates."""
        ids = self._ids[bucket_ms, topic]
        if (first := ids.get(message_id)) is None:
            ids[message_id] = place
            self._number_of_ids += 1
            if self._number_of_ids > _MAX_IDS:
                LOG.warning("more than %d message ids; duplicates in the oldest bucket are not reported", _MAX_IDS)
                self._forget(min(self._ids))
        elif first != place:
            ids[message_id] = min(first, place)
            partition, offset = max(first, place)
            self._duplicates[topic, bucket_ms, partition].append(offset)

    def _forget(self, key: tuple[int, str]) -> None:
        self._number_of_ids -= len(self._ids.pop(key))


class LogCounter:
    """Counts the topics of ``consumer``, whose group is the application in the reports.

    ``tier``: ``broker``, or ``mirror`` for a copy in another cluster. ``since_ms``: the start of the first counter, or
    ``None`` if this counter continues an earlier one.
    """

    def __init__(
        self,
        settings: AuditSettings,
        consumer: KafkaConsumer,
        producer: KafkaProducer,
        tier: str,
        *,
        since_ms: int | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._settings = settings
        self._consumer = consumer
        self._producer = producer
        self._tier = tier
        self._since_ms = since_ms
        self._clock = clock or SystemClock()
        self._counts = LogCounts(settings)
        self._positions: dict[TopicPartition, int] = {}
        self._logs: dict[str, str] | None = None
        self._starts: dict[TopicPartition, int] | None = {} if since_ms is not None else None

    def poll(self) -> int:
        """Count the messages of one poll, and return their number. Raises `MessagingError`; the caller must then read
        unreported messages again."""
        batch = self._consumer.poll(POLL_MESSAGES, POLL_SECONDS)
        for error in batch.errors:
            raise error
        now_ms = self._clock.time_ms()
        for part in batch.partitions:
            if self._starts is not None:
                self._starts.setdefault(part.topic_partition, part.start_offset)
            self._counts.add(part, now_ms)
            self._positions[part.topic_partition] = part.next_offset
        return len(batch)

    def report(self) -> None:
        """Report the counts since the last report, and commit. Raises `MessagingError`."""
        self._begin()
        counts = tuple(self._counts.take(self._clock.time_ms()))
        if counts:
            if self._logs is None:
                self._logs = self._consumer.topic_ids()  # a consumer reads the same logs until it raises TopicRecreated
            fail_point("audit.before_counts")
            self._publish(counts)
            fail_point("audit.after_counts")
        owned = self._consumer.assignment()
        positions = {partition: offset for partition, offset in self._positions.items() if partition in owned}
        if positions:
            self._consumer.commit(positions)
            fail_point("audit.after_count_commit")
        self._positions.clear()

    def _begin(self) -> None:
        """Report the start of the first counter for all topics, including idle ones, before its first report. Then
        commit, so that the next counter continues from there if this process is killed."""
        if self._starts is None or self._since_ms is None:
            return
        for partition in self._consumer.assignment():
            position = self._consumer.position(partition)
            if position is not None:
                self._starts.setdefault(partition, position)
        if self._starts:
            topics = sorted({partition.topic for partition in self._starts})
            self._publish([AuditCount(topic, self._since_ms) for topic in topics])
            for result in self._consumer.commit(self._starts).values():
                if result.error is not None:
                    raise result.error
            self._starts = None

    def _publish(self, counts: Iterable[AuditCount]) -> None:
        records = []
        for count in counts:
            report = AuditReport(
                id=uuid.uuid4().hex,
                tier=self._tier,
                application=self._consumer.settings.group_id,
                sent_ms=self._clock.time_ms(),
                bucket_seconds=self._settings.bucket_seconds,
                counts=(structs.replace(count, log=(self._logs or {}).get(count.topic, "")),),
                since_ms=self._since_ms,
            )
            records.append(Record(reports.encode(report)))
        for portion in portions(records, self._producer.settings):
            self._producer.publish(self._settings.topic, portion).raise_for_undelivered()


class CounterStarts(RebalanceListener):
    """The start offsets of a counter: the offsets of its group, or earlier offsets, so that the counter has the ids of
    messages whose duplicates may still arrive. A group without offsets starts with the current bucket, at
    `since_ms`."""

    def __init__(self, admin: Admin, group: str, settings: AuditSettings, now_ms: int) -> None:
        self._admin = admin
        self._group = group
        self._settings = settings
        has_offsets = bool(admin.group_offsets(group))
        self.since_ms = None if has_offsets else bucket_of(now_ms, settings.bucket_seconds)

    def assigned(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        committed, leaders = self._admin.group_offsets(self._group), self._admin.leaders()
        # A partition without a leader has no known offsets, and must not stop the others.
        starts = {each: committed.get(each, 0) for each in partitions}
        led = [each for each in partitions if leaders.get(each.topic, {}).get(each.partition) is not None]
        back_ms = round((self._settings.bucket_seconds + self._settings.grace_seconds) * 1000)
        since_ms = self.since_ms or bucket_of(SystemClock().time_ms() - back_ms, self._settings.bucket_seconds)
        at_time = self._admin.offsets_for_times(dict.fromkeys(led, since_ms))
        firsts, ends = self._admin.first_offsets(led), self._admin.end_offsets(led)
        for each in led:
            timely = ends[each] if (at := at_time[each]) is None else at
            known = committed.get(each, timely if self.since_ms is not None else firsts[each])
            starts[each] = max(min(timely, known), firsts[each])
        return starts


def _pieces(offsets: Mapping[_Key, Sequence[int]]) -> Iterator[tuple[_Key, Runs]]:
    for key, own in offsets.items():
        runs = runs_of(own)
        for start in range(0, len(runs), _MAX_RUNS):
            yield key, runs[start : start + _MAX_RUNS]
