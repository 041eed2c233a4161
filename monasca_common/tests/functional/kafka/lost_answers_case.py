# SPDX-License-Identifier: Apache-2.0
"""Lost or late responses while callers retry, and checks that must hold afterwards, whichever responses were lost."""

import os
from collections import Counter
from dataclasses import dataclass

from monasca_common.tests.checker import each_once
from monasca_common.tests.functional.kafka.producer_case import SECONDS, Logged, ProducerCase, doubled
from monasca_common.tests.kafka_proxy import ApiKey, Fault

PARTITIONS = 2
BULKS, BULK_SIZE = 30, 20
CALLER_SECONDS = 0.1
LATE_SECONDS = 0.4
RETRIES = 1000
# Small batches create many requests whose responses can be lost. A dropped response is detected after a second.
OPTIONS = {"batch.num.messages": "5", "socket.timeout.ms": "1000", "reconnect.backoff.max.ms": "200"}
# 1.1 MB of incompressible data: more than a topic accepts by default.
TOO_LARGE = os.urandom(1_100_000)


@dataclass(frozen=True)
class Aftermath:
    """The first and the last reports of callers, the messages of a reader by id, and the content of the log."""

    unknown_at_first: int
    delivered: list[bytes]
    undelivered: int
    read: dict[bytes, bytes]
    log: list[Logged]


class LostAnswersCase(ProducerCase):
    seed = 7

    def lose_answers(self, *, dropped=2):
        """Publish bulks whose responses are lost or late; the caller retries each report until all messages are
        delivered."""
        topic = self.fixture.topic(PARTITIONS)
        producer = self.producer(options=OPTIONS)
        producer.publish(topic, [b"warm"], timeout=SECONDS).raise_for_undelivered()
        for fault in (
            Fault.cut_answer(ApiKey.PRODUCE, probability=0.1, seed=self.seed, times=8),
            Fault.drop_answer(ApiKey.PRODUCE, probability=0.05, seed=self.seed, times=dropped),
            Fault.delay_answer(ApiKey.PRODUCE, seconds=LATE_SECONDS, probability=0.1, seed=self.seed, times=8),
        ):
            self.fixture.proxy.add(fault)
        unknown_at_first, reports = 0, []
        for bulk in range(BULKS):
            values = [b"%d/%d" % (bulk, number) for number in range(BULK_SIZE)]
            report = producer.publish(topic, values, timeout=CALLER_SECONDS)
            unknown_at_first += len(report.unknown)
            for _ in range(RETRIES):
                if report.ok:
                    break
                report = producer.retry(report, timeout=CALLER_SECONDS)
            reports.append(report)
        producer.close(SECONDS)
        return Aftermath(
            unknown_at_first,
            [delivery.message_id for report in reports for delivery in report.delivered],
            sum(len(report.failed) + len(report.unknown) for report in reports),
            self.read(topic, PARTITIONS),
            [record for record in self.log(topic, PARTITIONS) if record.value != b"warm"],
        )

    def check_that_all_was_delivered(self, aftermath):
        self.assertTrue(0 < aftermath.unknown_at_first < BULKS * BULK_SIZE)  # some but not all of the messages
        self.assertEqual(0, aftermath.undelivered)

    @each_once()
    def check_that_a_reader_sees_each_once(self, aftermath):
        self.assertEqual(set(), set(aftermath.delivered) - set(aftermath.read))
        counts = Counter(value for value in aftermath.read.values() if value != b"warm")
        self.assertEqual({b"%d/%d" % (bulk, n): 1 for bulk in range(BULKS) for n in range(BULK_SIZE)}, dict(counts))

    @each_once()
    def check_that_the_log_holds_each_once(self, aftermath):
        self.assertEqual((BULKS * BULK_SIZE, 0), (len(aftermath.log), doubled(aftermath.log)))


class LargeNeighboursCase(ProducerCase):
    """Records are too large for one topic, while responses for records of another topic are lost."""

    seed = 7
    rounds = 10

    def publish_beside_large_records(self):
        """Return the log of the topic with small records, and the outcomes of the large records."""
        topic, other = self.fixture.topic(), self.fixture.topic()
        producer = self.producer(options=OPTIONS)
        for name in (topic, other):
            producer.publish(name, [b"warm"], timeout=SECONDS).raise_for_undelivered()
        # A large record is rejected while small records are written but unanswered, and their responses never arrive.
        self.fixture.proxy.add(
            Fault.delay_answer(ApiKey.PRODUCE, seconds=0.05, where=lambda request: other.encode() in request.frame)
        )
        self.fixture.proxy.add(
            Fault.cut_answer(
                ApiKey.PRODUCE, probability=0.4, seed=self.seed, where=lambda request: topic.encode() in request.frame
            )
        )
        outcomes = []
        for number in range(self.rounds):
            producer.send(other, TOO_LARGE, on_delivery=outcomes.append)
            report = producer.publish(topic, [b"%d/%d" % (number, n) for n in range(BULK_SIZE)], timeout=SECONDS)
            self.assertTrue(report.ok, repr(report))
        producer.close(SECONDS)
        return self.log(topic), outcomes

    @each_once()
    def check_that_the_log_holds_each_once(self, log):
        self.assertEqual((self.rounds * BULK_SIZE + 1, 0), (len(log), doubled(log)))
