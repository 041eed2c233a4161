# SPDX-License-Identifier: Apache-2.0
"""A process that ends while a call of its producer hangs: ``python -m … '<json>'``; its exit status is 3.

With ``poisoned`` the call has passed its deadline by then; otherwise its caller still waits.
"""

import json
import sys
import threading
import time

import confluent_kafka

from monasca_common.kafka import plugins
from monasca_common.kafka.errors import FatalError, RetriableError
from monasca_common.kafka.message import TopicPartition
from monasca_common.kafka.settings import ConnectionSettings, ProducerSettings
from monasca_common.kafka.transport import client_thread

EXIT_STATUS = 3


class Consumer:
    """A consumer that has read one message of a partition."""

    def __init__(self, servers, group):
        self._client = confluent_kafka.Consumer({"bootstrap.servers": servers, "group.id": group, "log_level": 0})

    def next_offsets(self, inputs):
        return inputs

    def group_metadata(self):
        return self._client.consumer_group_metadata()

    def seek_to_committed(self):
        raise AssertionError("nothing is read again")


def main(facts):
    client_thread.GRACE_SECONDS = 0.2
    producer = plugins.kafka_producer(
        ProducerSettings(
            ConnectionSettings(facts["servers"]),
            transactional_id=facts["transactional_id"],
            transaction_timeout_seconds=1.0 if facts["poisoned"] else 60.0,
        )
    )
    consumer = Consumer(facts["servers"], facts["group"])
    while True:
        try:
            producer.init_transactions(20.0)
            break
        except RetriableError:
            continue
    ended = []

    def transact():
        try:
            with producer.transaction() as transaction:
                transaction.commit_offsets(consumer, {TopicPartition(facts["topic"], 0): 1})
        except FatalError:
            ended.append(True)

    threading.Thread(target=transact, daemon=True).start()
    deadline = time.monotonic() + 120
    while not (ended if facts["poisoned"] else producer.health().oldest_call_seconds > 0.5):
        if time.monotonic() > deadline:
            return 1
        time.sleep(0.05)
    print("ends", flush=True)  # noqa: T201
    if facts["closes"]:
        producer.close(1)
    return EXIT_STATUS


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
