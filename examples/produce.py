# SPDX-License-Identifier: Apache-2.0
"""Publish a bulk, read its report, and retry until every reading is delivered.

Exit status: 0 if every reading is delivered, 1 if readings are undelivered or the configuration is wrong.
"""

import sys
import time

from oslo_config import cfg

from monasca_common import kafka

RETRY_PAUSE_SECONDS = 0.5

OPTIONS = [
    cfg.StrOpt("topic", default="readings", help="The topic to publish to."),
    cfg.IntOpt("count", default=10, min=0, help="The number of readings."),
    cfg.FloatOpt("patience_seconds", default=30.0, help="Seconds to retry undelivered readings."),
]


def readings(count: int) -> list[kafka.Record]:
    json = kafka.load_serializer("json")
    # Keys are bytes, and a serializer converts values to bytes.
    return [
        kafka.Record(json.dumps({"room": f"room-{n % 3}", "celsius": 20 + n}), key=b"room-%d" % (n % 3))
        for n in range(count)
    ]


def publish_all(
    producer: kafka.KafkaProducer, topic: str, records: list[kafka.Record], patience_seconds: float
) -> kafka.DeliveryReport:
    deadline = time.monotonic() + patience_seconds
    report = producer.publish(topic, records)
    tell(report)
    while report.retriable and time.monotonic() < deadline:
        # Pass the report, not the records, because publishing the records again would give them new ids, and the log
        # could contain them twice.
        time.sleep(RETRY_PAUSE_SECONDS)
        report = producer.retry(report)
        tell(report)
    return report


def tell(report: kafka.DeliveryReport) -> None:
    print(f"delivered {report.delivered_count}, failed {len(report.failed)}, unknown {len(report.unknown)}")
    for delivery in report.failed:
        print(f"  number {delivery.index} is definitely not in the log: {delivery.error}")
    for delivery in report.unknown:
        print(f"  number {delivery.index} may be in the log: {delivery.error}")


def main() -> int:
    conf = cfg.ConfigOpts()
    conf.register_cli_opts(OPTIONS)
    try:
        conf(project="produce", default_config_files=[])
        with kafka.load_producer(conf) as producer:
            report = publish_all(producer, conf.topic, readings(conf.count), conf.patience_seconds)
    except (kafka.MessagingError, cfg.Error) as error:
        print(f"produce: {error}", file=sys.stderr)
        return 1
    for delivery in report.delivered:
        print(f"  number {delivery.index} is at {delivery.topic}/{delivery.partition}/{delivery.offset}")
    return 0 if report.ok else 1


if __name__ == "__main__":
    sys.exit(main())
