# SPDX-License-Identifier: Apache-2.0
"""Send dead letters back to where they came from, after the handler or the input was repaired.

`monasca-common dlq replay` does the same for the topics of the services; this is how a program of yours does it.

Exit status: 0 when every letter was sent back or reported to stay, 1 when some wait because their topics do not take
them, when something is wrong, or after Ctrl-C. What was sent back and not yet committed is sent again by the next run,
under the same id.
"""

import sys

from oslo_config import cfg

from monasca_common import kafka
from monasca_common.operations.dead_letters import DeadLetterReplay

OPTIONS = [
    cfg.IntOpt("max_replays", default=3, min=1, help="How often one message is sent back at most."),
]


def replay(producer: kafka.KafkaProducer, consumer: kafka.KafkaConsumer, max_replays: int) -> tuple[int, int, int]:
    """How many letters were sent back, how many stay, and how many wait for another run."""
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
