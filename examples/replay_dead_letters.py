# SPDX-License-Identifier: Apache-2.0
"""Send dead letters back to where they came from, after the handler or the input was repaired.

Exit status: 0 when every letter was sent back or told to stay, 1 when some were not delivered or something is wrong.
"""

import sys

from oslo_config import cfg

from monasca_common import kafka

OPTIONS = [cfg.IntOpt("idle_polls", default=3, min=1, help="Stop after so many polls without a letter.")]


def original(letter: kafka.Message) -> tuple[str, kafka.Record]:
    """The topic it came from, and the message as it was, under the id that it had: readers know it by that."""
    provenance = dict(letter.headers)
    headers = tuple(
        (name, value) for name, value in letter.headers if name != "message-id" and not name.startswith("dead-letter-")
    )
    record = kafka.Record(
        letter.value,
        key=letter.key,
        headers=headers,
        message_id=provenance["dead-letter-origin-message-id"],
    )
    return provenance["dead-letter-origin-topic"].decode(), record


def replay(producer: kafka.KafkaProducer, consumer: kafka.KafkaConsumer, idle_polls: int) -> int:
    sent, idle = 0, 0
    while idle < idle_polls:
        batch = consumer.poll()
        if batch.errors:
            raise batch.errors[0]
        idle = 0 if len(batch) else idle + 1
        for letter in batch:
            if "dead-letter-value-cut-from" in dict(letter.headers):
                print(f"stays, its value was cut: {letter.message_id.decode()}")
                continue
            topic, record = original(letter)
            producer.publish(topic, [record]).raise_for_undelivered()
            print(f"sent back to {topic}: {letter.message_id.decode()}")
            sent += 1
        consumer.commit(batch)
    return sent


def main() -> int:
    conf = cfg.ConfigOpts()
    conf.register_cli_opts(OPTIONS)
    try:
        conf(project="replay-dead-letters", default_config_files=[])
        with kafka.load_producer(conf) as producer, kafka.load_consumer(conf, "kafka_dead_letters") as consumer:
            print(f"{replay(producer, consumer, conf.idle_polls)} sent back")
    except (kafka.MessagingError, cfg.Error) as error:
        print(f"replay_dead_letters: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
