# SPDX-License-Identifier: Apache-2.0
"""The cost of an idle processor with very many partitions."""

import time

from oslotest import base

from monasca_common.kafka.message import Record, TopicPartition
from monasca_common.kafka.processor.processor import Processor
from monasca_common.kafka.testing import MemoryKafka

_PARTITIONS = 10_000
_BUSY = 200
_MOST_SECONDS = 0.005  # of CPU
_PATIENCE_SECONDS = 60


class IdleTurnTest(base.BaseTestCase):
    def test_an_idle_turn_over_ten_thousand_partitions_takes_less_than_five_milliseconds_of_cpu(self):
        kafka = self.useFixture(MemoryKafka())
        kafka.broker.create_topic("in", _PARTITIONS)
        records = [Record(b"x", partition=number * (_PARTITIONS // _BUSY)) for number in range(_BUSY)]
        kafka.producer().publish("in", records, timeout=_PATIENCE_SECONDS).raise_for_undelivered()
        everything = [TopicPartition("in", number) for number in range(_PARTITIONS)]
        processor = Processor(kafka.consumer("in", partitions=everything), lambda part: None)
        self.addCleanup(processor._wind_down)
        processor._begin()
        give_up = time.monotonic() + _PATIENCE_SECONDS
        while len(processor._tracker.confirmed()) < _BUSY:
            self.assertLess(time.monotonic(), give_up)
            processor._turn()
        processor._poll_seconds = lambda: 0.0
        self.assertLess(min(self.cpu_seconds(processor) for _ in range(20)), _MOST_SECONDS)

    def cpu_seconds(self, processor):
        began = time.thread_time()
        processor._turn()
        return time.thread_time() - began
