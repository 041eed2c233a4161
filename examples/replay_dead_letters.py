# SPDX-License-Identifier: Apache-2.0
"""Send dead letters back to their original topics after the handler or the input was repaired.

`monasca-common dlq replay` does the same for the topics of the services.

Exit status: 0 if every dead letter was sent back or cannot be, 1 if some wait because their topics refuse them, after
an error, or after Ctrl-C. The next run repeats messages that were sent back but not committed, with the same ids.
"""

import sys

from oslo_config import cfg

from monasca_common import kafka
from monasca_common.operations.dead_letters import DeadLetterReplay

OPTIONS = [
    cfg.IntOpt("max_replays", default=3, min=1, help="The maximum number of replays of a message."),
]


def replay(producer: kafka.KafkaProducer, consumer: kafka.KafkaConsumer, max_replays: int) -> tuple[int, int, int]:
    """Return the numbers of dead letters that were sent back, that stay, and that wait for another run."""
    sent = stayed = waiting = 0
    for letter in DeadLetterReplay(consumer, max_replays=max_replays).send(producer):
        if letter.refusal:
            print(f"waits, {letter.refusal}: {letter.place}")
            waiting += 1
        elif letter.stays:
            print(f"stays, {letter.stays}: {letter.place}")
            stayed += 1
        else:
            print(f"sent back to {letter.origin_topic}: {letter.place}")
            sent += 1
    return sent, stayed, waiting


def main() -> int:
    conf = cfg.ConfigOpts()
    conf.register_cli_opts(OPTIONS)
    try:
        conf(project="replay-dead-letters", default_config_files=[])
        with kafka.load_producer(conf) as producer, kafka.load_consumer(conf, "kafka_dead_letters") as consumer:
            sent, stayed, waiting = replay(producer, consumer, conf.max_replays)
    except KeyboardInterrupt:
        print("replay_dead_letters: stopped", file=sys.stderr)
        return 1
    except (kafka.MessagingError, cfg.Error) as error:
        print(f"replay_dead_letters: {error}", file=sys.stderr)
        return 1
    print(f"{sent} sent back, {stayed} stay, {waiting} wait")
    return 1 if waiting else 0


if __name__ == "__main__":
    sys.exit(main())
