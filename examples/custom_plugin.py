# SPDX-License-Identifier: Apache-2.0
"""Write and read with a serializer that another package registers under a name.

Install the package first (`pip install examples/csv_serializer`). Exit status: 0 if the row read equals the
written row, 1 if not, or if no installed package registers the name.
"""

import sys

from oslo_config import cfg

from monasca_common import kafka
from monasca_common.kafka import Serializer

OPTIONS = [cfg.StrOpt("serializer", default="csv", help="An entry point of monasca_common.serializers.")]
ROW = ["hall", "21.5", "said, and quoted"]


def written_with(serializer: Serializer, message: kafka.Message) -> bool:
    return dict(message.headers).get("content-type") == serializer.content_type.encode()  # header values are bytes


def run(conf: cfg.ConfigOpts) -> bool:
    serializer = kafka.load_serializer(conf.serializer)
    with kafka.load_producer(conf) as producer, kafka.load_consumer(conf, "kafka_readings") as consumer:
        topic = consumer.settings.topics[0]
        record = serializer.record(topic, ROW)
        producer.publish(topic, [record]).raise_for_undelivered()
        print(f"published {record.value!r} as {serializer.content_type}")
        for _ in range(10):
            batch = consumer.poll(timeout=2.0)
            if batch.errors:
                raise batch.errors[0]
            rows = [
                serializer.loads(message.value)  # bytes; None is a tombstone
                for message in batch
                if message.value is not None and written_with(serializer, message)
            ]
            consumer.commit(batch)
            if rows:
                print(f"read {rows}")
                return ROW in rows
    print("custom_plugin: the row was not read: does another consumer read its partition?", file=sys.stderr)
    return False


def main() -> int:
    conf = cfg.ConfigOpts()
    conf.register_cli_opts(OPTIONS)
    try:
        conf(project="custom-plugin", default_config_files=[])
        return 0 if run(conf) else 1
    except (kafka.MessagingError, cfg.Error) as error:
        print(f"custom_plugin: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
