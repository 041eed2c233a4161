# SPDX-License-Identifier: Apache-2.0
"""Poll, handle and commit: the loop inside `kafka.Processor` in its simplest form.

Exit status: 0 after `--count` readings or Ctrl-C, 1 after an error that another poll does not resolve.
"""

import sys

from oslo_config import cfg

from monasca_common import kafka

OPTIONS = [cfg.IntOpt("count", default=0, min=0, help="The number of readings after which to stop; 0: stop at Ctrl-C.")]


def read(consumer: kafka.KafkaConsumer, stored: dict[bytes, object], count: int) -> None:
    json = kafka.load_serializer("json")
    while not count or len(stored) < count:
        batch = consumer.poll(count - len(stored) if count else 500)
        for error in batch.errors:
            if not isinstance(error, kafka.RetriableError):
                raise error
            print(f"temporary error: {error}")
        for message in batch:
            if message.message_id in stored:
                continue  # a duplicate after a crash or a rebalance, recognized by its id
            if message.value is None:
                continue  # a tombstone, which a topic of readings does not have
            stored[message.message_id] = reading = json.loads(message.value)
            print(f"{message.topic}/{message.partition}/{message.offset} {reading}")
        # Commit only after storing, because a crash between committing and storing would lose messages.
        for partition, result in consumer.commit(batch).items():
            if result.committed:
                print(f"committed {partition.topic}/{partition.partition} up to {result.next_offset}")
            else:
                print(f"not committed, so it will be read again: {result.error}")


def main() -> int:
    conf = cfg.ConfigOpts()
    conf.register_cli_opts(OPTIONS)
    stored: dict[bytes, object] = {}
    try:
        conf(project="consume", default_config_files=[])
        with kafka.load_consumer(conf, "kafka_readings") as consumer:
            read(consumer, stored, conf.count)
    except KeyboardInterrupt:
        print("stopped")
    except (kafka.MessagingError, cfg.Error) as error:
        print(f"consume: {error}", file=sys.stderr)
        return 1
    print(f"{len(stored)} readings")
    return 0


if __name__ == "__main__":
    sys.exit(main())
