# SPDX-License-Identifier: Apache-2.0
"""A producer and its topics: the cost of the first writes to many topics, and a deleted and recreated topic."""

import contextlib
import os
import threading
import time

from monasca_common.tests.functional.kafka.producer_case import SECONDS, ProducerCase
from monasca_common.tests.periodic import periodic

TOPICS = 60
MOST_THREADS = 22  # two clients with three or four threads each, one for a request, and those of the library
MOST_SOCKETS = 20  # including the pipes by which librdkafka's threads wake each other


def threads():
    return len(os.listdir("/proc/self/task"))


def sockets():
    count = 0
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            count += os.readlink(f"/proc/self/fd/{fd}").startswith("socket:")
    return count


class TestRecreatedTopic(ProducerCase):
    cluster_settings = {}  # noqa: RUF012

    def test_a_producer_notices_that_its_topic_was_deleted_and_recreated(self):
        topic = self.fixture.topic()
        producer = self.producer(topic_check_seconds=0.1)
        producer.publish(topic, [b"1"], timeout=SECONDS).raise_for_undelivered()
        self.wait_until(lambda: topic in producer._limits.watch._ids)
        self.cluster.admin.delete_topic(topic)
        self.cluster.create_topic(topic)
        self.wait_until(lambda: producer.health().recreated_topics)
        time.sleep(0.5)  # interval of the next check
        self.assertEqual(1, producer.health().recreated_topics)

    def test_messages_acknowledged_after_a_creation_are_in_the_new_topic(self):
        topic = self.fixture.topic()
        for number in range(5):
            value = b"%d" % number
            self.producer().publish(topic, [value] * 20, timeout=SECONDS).raise_for_undelivered()
            self.assertEqual([value] * 20, [record.value for record in self.log(topic)])
            self.cluster.admin.delete_topic(topic)
            self.cluster.create_topic(topic)


@periodic("the cost of many topics; the unit tests cover the mechanism")
class TestManyTopics(ProducerCase):
    cluster_settings = {}  # noqa: RUF012

    # Rule 2
    def test_one_client_requests_the_limits_of_sixty_new_topics(self):
        topics = [self.fixture.topic() for _ in range(TOPICS)]
        base, most = (threads(), sockets()), [0, 0]
        over = threading.Event()

        def look():
            while not over.is_set():
                most[:] = max(most[0], threads()), max(most[1], sockets())
                time.sleep(0.002)

        watching = threading.Thread(target=look)
        watching.start()
        try:
            producer = self.producer()
            for topic in topics:
                producer.send(topic, b"v")
            self.assertEqual(TOPICS, producer.flush(SECONDS).delivered_count)
        finally:
            over.set()
            watching.join()
        self.assertLess(most[0] - base[0], MOST_THREADS)
        self.assertLess(most[1] - base[1], MOST_SOCKETS)

        producer.close(SECONDS)
        self.wait_until(lambda: threads() <= base[0] and sockets() <= base[1])
