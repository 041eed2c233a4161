# SPDX-License-Identifier: Apache-2.0
"""A processor that waits for its database, retries temporary errors, and dead-letters messages that can never be
handled.

Exit status: 0 if exactly the three bad readings became dead letters, otherwise 1.
"""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from oslo_config import cfg

from monasca_common import kafka

READINGS = [
    b'{"room": "hall", "celsius": 21}',
    b'{"room": "cellar", "celsius": 12}',
    b'{"room": "oven", "celsius": 900}',  # an impossible value: Poison
    b'{"room": "attic"}',  # a bug in the handler: KeyError
    b"not JSON at all",
]
BAD = 3
ROOMS = {"hall", "cellar"}  # temperatures of the good readings


class Store:
    """A database that is unavailable at its first call."""

    def __init__(self) -> None:
        self.rows: dict[str, float] = {}
        self.complete = threading.Event()
        self._is_away = True

    def handle(self, message: kafka.Message[dict[str, Any]]) -> None:
        reading = message.value  # the value that the processor's serializer parsed
        if reading["celsius"] > 100:
            raise kafka.Poison(f"{reading['celsius']} degrees in {reading['room']}")
        if self._is_away:
            self._is_away = False
            print("the database is unavailable: the same reading is handled again")
            raise kafka.RetryLater(after=0.2)
        self.rows[reading["room"]] = reading["celsius"]
        print(f"stored {reading}")
        if self.rows.keys() >= ROOMS:
            self.complete.set()


def create_missing_topics(conf: cfg.ConfigOpts, topics: list[str]) -> None:
    admin = kafka.load_admin(conf)
    for topic in set(topics) - set(admin.topic_ids(topics, timeout=10)):
        admin.create_topic(topic)


def inspect(consumer: kafka.KafkaConsumer, count: int) -> int:
    """Print the origins and errors of `count` dead letters. Return the number of dead letters found in ten polls."""
    seen = 0
    for _ in range(10):
        batch = consumer.poll(timeout=2.0)
        if batch.errors:
            raise batch.errors[0]
        for letter in batch:
            origin = {name: value or b"" for name, value in letter.headers}
            place = b"/".join(origin[f"dead-letter-origin-{part}"] for part in ("topic", "partition", "offset"))
            print(f"dead letter {letter.message_id.decode()}: {letter.value!r}")
            print(f"  came from {place.decode()} as {origin['dead-letter-origin-message-id'].hex()}")
            print(f"  {origin['dead-letter-error-class'].decode()}: {origin['dead-letter-error-text'].decode()}")
            print(f"  after {origin['dead-letter-attempts'].decode()} attempts")
            seen += 1
        consumer.commit(batch)
        if seen >= count:
            break
    return seen


def run(conf: cfg.ConfigOpts) -> bool:
    store = Store()
    consumer = kafka.load_consumer(conf, "kafka_readings")
    inspector = kafka.load_consumer(conf, "kafka_dead_letters")
    create_missing_topics(conf, [*consumer.settings.topics, *inspector.settings.topics])
    with kafka.load_producer(conf) as producer, consumer, inspector, ThreadPoolExecutor() as pool:
        producer.publish(consumer.settings.topics[0], READINGS).raise_for_undelivered()
        processor = kafka.Processor(
            consumer,
            store.handle,
            per_message=True,
            serializer=kafka.load_serializer("json"),
            producer=producer,
            retry=kafka.RetryPolicy(attempts=3, backoff_seconds=0.1),
            dead_letters=kafka.DeadLetters(max_consecutive=10),
        )
        running = pool.submit(processor.run)
        try:
            seen = inspect(inspector, BAD)
            store.complete.wait(timeout=20)  # a stop leaves messages that wait for a retry to the next run
        finally:
            processor.stop()
        report = running.result()  # raises the error that ended the run, if any
    print(f"stored {len(store.rows)}, dead letters {seen}, committed {dict(report.committed)}")
    return seen == BAD and report.clean


def main() -> int:
    conf = cfg.ConfigOpts()
    try:
        conf(project="retry-dead-letters", default_config_files=[])
        return 0 if run(conf) else 1
    except (kafka.MessagingError, cfg.Error) as error:
        print(f"retry_dead_letters: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
