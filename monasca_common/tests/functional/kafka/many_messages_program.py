# SPDX-License-Identifier: Apache-2.0
"""Sends and reads many messages, and prints the resident memory in MiB after each tenth of them.

python -m monasca_common.tests.functional.kafka.many_messages_program SERVERS TOPIC MESSAGES
"""

import sys

import psutil

from monasca_common.kafka import open_consumer, open_producer
from monasca_common.kafka.settings import ConnectionSettings, ConsumerSettings, ProducerSettings

SECONDS = 60.0


def main(servers, topic, messages):
    connection, tenth = ConnectionSettings(servers), messages // 10
    with open_producer(ProducerSettings(connection)) as producer:
        for _ in range(10):
            for number in range(tenth):
                producer.send(topic, b"%d" % number)
            producer.flush(SECONDS).raise_for_undelivered()
            print_memory("sent")
    with open_consumer(ConsumerSettings(connection, (topic,), "group")) as consumer:
        for _ in range(10):
            count = 0
            while count < tenth:
                batch = consumer.poll(min(10_000, tenth - count), timeout=SECONDS)
                count += len(batch)
                consumer.commit(batch)
            print_memory("read")


def print_memory(what):
    print(what, psutil.Process().memory_info().rss // 1024**2, flush=True)  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
