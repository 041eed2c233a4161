# SPDX-License-Identifier: Apache-2.0
"""A gap in the sequence of one partition makes librdkafka bump the epoch, and a batch of another partition whose
response was lost is written again (librdkafka issue 4953).

If the first test fails, librdkafka's behaviour has changed: correct the page on guarantees.
"""

import time

from monasca_common.kafka.message import Record
from monasca_common.tests.functional.kafka.producer_case import SECONDS, ProducerCase, doubled
from monasca_common.tests.kafka_proxy import ApiKey, Fault
from monasca_common.tests.periodic import periodic

_BETWEEN_SECONDS = 0.1  # each message is a batch and a request


@periodic("the test waits for time-outs of the client, and shows a limit instead of a guarantee")
class EpochBumpTest(ProducerCase):
    def log_after_a_gap(self, **options):
        """Return the log after the response to a batch of partition 1 is lost and the first of two batches of partition
        0 never arrives."""
        topic = self.fixture.topic(2)
        producer = self.producer(options={"socket.timeout.ms": "2000", **options})
        for partition in (0, 1):
            producer.publish(topic, [Record(b"warm", partition=partition)], timeout=SECONDS).raise_for_undelivered()
        faults = [
            self.fixture.proxy.add(
                Fault.drop_answer(ApiKey.PRODUCE, times=1, where=lambda request: b"answer lost" in request.frame)
            ),
            self.fixture.proxy.add(
                Fault.drop_request(ApiKey.PRODUCE, times=1, where=lambda request: b"request lost" in request.frame)
            ),
        ]
        for value, partition in ((b"answer lost", 1), (b"request lost", 0), (b"next", 0)):
            producer.send(topic, Record(value, partition=partition))
            time.sleep(_BETWEEN_SECONDS)
        self.assertTrue(producer.flush(SECONDS).ok)
        self.assertEqual([1, 1], [fault.taken for fault in faults])
        self.topic = topic
        return self.log(topic, 2)

    def test_a_gap_in_one_partition_duplicates_a_record_of_another_and_a_reader_by_id_sees_it_once(self):
        log = self.log_after_a_gap()
        self.assertEqual(1, doubled(log))
        self.assertEqual([b"answer lost"] * 2, [each.value for each in log if each.partition == 1 and each.offset])
        self.assertEqual([b"answer lost", b"next", b"request lost"], sorted(set(self.read(self.topic, 2).values()))[:3])

    def test_with_one_request_in_flight_there_is_no_gap_and_no_duplicate(self):
        self.assertEqual(0, doubled(self.log_after_a_gap(**{"max.in.flight": "1"})))
