# SPDX-License-Identifier: Apache-2.0
"""A service on asyncio: publish readings, read and commit batches, and handle messages concurrently.

Exit status: 0 if every reading is delivered, read and handled, otherwise 1.
"""

import asyncio
import signal
import sys
from typing import Any

from oslo_config import cfg

from monasca_common import kafka
from monasca_common.kafka import aio

COUNT = 10
LOOKUP_SECONDS = 0.01
RETRY_PAUSE_SECONDS = 0.5


async def publish(producer: aio.AsyncProducer, topic: str) -> None:
    json = kafka.load_serializer("json")
    rooms = [f"room-{number}" for number in range(COUNT)]
    records = [kafka.Record(json.dumps({"room": room, "celsius": 20}), key=room.encode()) for room in rooms]
    report = await producer.publish(topic, records)
    while report.retriable:
        await asyncio.sleep(RETRY_PAUSE_SECONDS)
        report = await producer.retry(report)  # the same messages with the same ids
    report.raise_for_undelivered()
    print(f"published {report.delivered_count}")


async def read(consumer: aio.AsyncConsumer) -> None:
    count = 0
    async for batch in consumer:
        for error in batch.errors:
            print(f"read: {error}")
        count += len(batch)
        await consumer.commit(batch)
        if count >= COUNT:
            break
    print(f"read {count}")


class Rooms:
    def __init__(self) -> None:
        self.rooms: set[str] = set()
        self.complete = asyncio.Event()

    async def handle(self, message: kafka.Message[dict[str, Any]]) -> None:
        await asyncio.sleep(LOOKUP_SECONDS)  # for example, a request to another service
        self.rooms.add(message.value["room"])
        if len(self.rooms) == COUNT:
            self.complete.set()


async def process(consumer: kafka.KafkaConsumer) -> None:
    rooms = Rooms()
    processor = aio.AsyncProcessor(
        kafka.Processor(
            consumer,
            rooms.handle,
            per_message=True,
            order="key",  # one message per room at a time
            serializer=kafka.load_serializer("json"),
        ),
        concurrency=50,
    )
    running = asyncio.create_task(processor.run())
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)  # commits handled messages
    complete = asyncio.create_task(rooms.complete.wait())
    await asyncio.wait({running, complete}, return_when=asyncio.FIRST_COMPLETED)
    complete.cancel()
    await processor.stop()
    report = await running  # raises the error that ended the run, if any
    print(f"handled {len(rooms.rooms)}, clean {report.clean}")


async def run(conf: cfg.ConfigOpts) -> None:
    async with aio.AsyncProducer(kafka.load_producer(conf)) as producer:
        consumer = kafka.load_consumer(conf, "kafka_readings")
        [topic] = consumer.settings.topics
        await publish(producer, topic)
        async with aio.AsyncConsumer(consumer) as reader:
            await read(reader)
        await publish(producer, topic)
        with kafka.load_consumer(conf, "kafka_readings") as consumer:
            await process(consumer)


def main() -> int:
    conf = cfg.ConfigOpts()
    try:
        conf(project="asyncio-service", default_config_files=[])
        asyncio.run(run(conf))
    except (kafka.MessagingError, cfg.Error) as error:
        print(f"asyncio_service: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
