# SPDX-License-Identifier: Apache-2.0

from dataclasses import dataclass
from types import SimpleNamespace

from oslotest import base

from monasca_common.kafka import TopicPartition, TransportError
from monasca_common.kafka.settings import ConnectionSettings, ConsumerSettings
from monasca_common.pipeline.source import range_reader
from monasca_common.pipeline.source.offset_store import OffsetRange
from monasca_common.pipeline.source.range_reader import RangeReader

METRICS = TopicPartition("metrics", 0)


@dataclass
class Part:
    """A part of a batch that holds these offsets."""

    offsets: list[int]
    topic_partition = METRICS

    @property
    def next_offset(self):
        return self.offsets[-1] + 1

    def __len__(self):
        return len(self.offsets)

    def slice(self, start, stop):
        return Part(self.offsets[start:stop])


class FakeConsumer:
    """A consumer of one partition.

    Its first poll returns the records ``first`` and reports the end ``end``, which may be older than some of them. Each
    later poll returns the records from the position on, or reports the end.
    """

    def __init__(self, records, first, end):
        self.records, self.first, self.end = records, first, end
        self.position, self.ends, self.closed = None, {}, False

    def seek(self, partition, offset):
        self.position = offset

    def poll(self, most, timeout):
        found, end = self.first, self.end
        if not found:
            found, end = [each for each in self.records if each >= self.position], self.records[-1] + 1
        self.first = None
        self.position = found[-1] + 1 if found else self.position
        if not found or end != self.records[-1] + 1:
            self.ends = {METRICS: SimpleNamespace(next_offset=end)}
        return SimpleNamespace(errors=(), partitions=(Part(found),) if found else ())

    def take_ends(self):
        ends, self.ends = self.ends, {}
        return ends

    def close(self):
        self.closed = True


class RangeReaderTest(base.BaseTestCase):
    settings = ConsumerSettings(ConnectionSettings("nowhere:1"), ("metrics",), "g")

    def reader(self, consumer):
        self.patch(range_reader, "open_consumer", lambda *_, **__: consumer)
        return RangeReader(self.settings, {0: 1})

    def test_an_end_that_was_reported_before_later_records_of_a_poll_loses_none_of_them(self):
        reader = self.reader(FakeConsumer(records=[0, 1, 2, 3], first=[1, 2, 3], end=2))
        read = [
            [offset for part in reader.read([OffsetRange(0, start, end)]) for offset in part.offsets]
            for start, end in ((1, 2), (2, 4))
        ]
        self.assertEqual([[1], [2, 3]], read)

    def test_control_records_at_the_end_of_the_log_are_skipped(self):
        reader = self.reader(FakeConsumer(records=[1], first=[1], end=5))
        self.assertEqual([[1]], [part.offsets for part in reader.read([OffsetRange(0, 1, 5)])])

    def test_a_reader_that_cannot_be_positioned_leaves_no_consumer_open(self):
        consumer = FakeConsumer([], [1], 0)
        self.patch(consumer, "seek", self.refuse)
        self.assertRaises(TransportError, self.reader, consumer)
        self.assertTrue(consumer.closed)

    def refuse(self, partition, offset):
        raise TransportError("no response")
