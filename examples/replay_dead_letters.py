# SPDX-License-Identifier: Apache-2.0
"""Replay dead letters to their original topics after the handler or the input has been fixed.

`monasca-common dlq replay` does the same for the topics of the services, and for any topic with --topic.

Exit status: 0 if every dead letter was replayed or is not replayable, 1 if topics refused some, after an error, or
after Ctrl-C. The next run repeats messages that were replayed but not committed, with the same ids.
"""

import sys

from oslo_config import cfg

from monasca_common import kafka
from monasca_common.operations.dead_letters import DeadLetterReplay

OPTIONS = [
    cfg.IntOpt("max_replays", default=3, min=1, help="The maximum number of replays of a message."),
]


def replay(producer: kafka.KafkaProducer, consumer: kafka.KafkaConsumer, max_replays: int) -> tuple[int, int, int]:
    """Return how many dead letters were replayed, not replayable, and refused."""
    replayed = skipped = refused = 0
    for letter in DeadLetterReplay(consumer, max_replays=max_replays).send(producer):
        if letter.refusal:
            print(f"refused, {letter.refusal}: {letter.place}")
            refused += 1
        elif letter.obstacle:
            print(f"not replayable, {letter.obstacle}: {letter.place}")
            skipped += 1
        else:
            print(f"replayed to {letter.origin_topic}: {letter.place}")
            replayed += 1
    return replayed, skipped, refused


def main() -> int:
    conf = cfg.ConfigOpts()
    conf.register_cli_opts(OPTIONS)
    try:
        conf(project="replay-dead-letters", default_config_files=[])
        with kafka.load_producer(conf) as producer, kafka.load_consumer(conf, "kafka_replay") as consumer:
            replayed, skipped, refused = replay(producer, consumer, conf.max_replays)
    except KeyboardInterrupt:
        print("replay_dead_letters: stopped", file=sys.stderr)
        return 1
    except (kafka.MessagingError, cfg.Error) as error:
        print(f"replay_dead_letters: {error}", file=sys.stderr)
        return 1
    print(f"{replayed} replayed, {skipped} not replayable, {refused} refused")
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main())
