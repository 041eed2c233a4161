# SPDX-License-Identifier: Apache-2.0
"""A processor in a separate process, for crash tests: ``python -m … '<json>'``, stopped by SIGTERM.

It writes every value * 2 to another topic, and refuses values that start with ``bad``. ``mutant``
removes one guarantee; the environment arms fail points.
"""

import json
import signal
import sys
import time
import uuid
from dataclasses import replace
from unittest import mock

from monasca_common.kafka import open_consumer, open_producer
from monasca_common.kafka.message import Record
from monasca_common.kafka.processor import dead_letters, handler_call
from monasca_common.kafka.processor.attempt import Attempts
from monasca_common.kafka.processor.dead_letters import DeadLetters, dead_letter
from monasca_common.kafka.processor.offset_tracker import OffsetTracker
from monasca_common.kafka.processor.processor import Processor
from monasca_common.kafka.processor.publishing import TransactionalPublisher
from monasca_common.kafka.processor.queues import Task
from monasca_common.kafka.processor.retry import RetryPolicy
from monasca_common.kafka.settings import ConnectionSettings, ConsumerSettings, ProducerSettings


def patch(owner, name, value):
    """Replace the attribute permanently: this process is the mutant."""
    mock.patch.object(owner, name, value).start()


def commits_what_it_polled():
    """Received messages count as done, and are committed in the next loop iteration."""
    received = OffsetTracker.received

    def received_is_done(tracker, part):
        received(tracker, part)
        tracker.done_range(part.topic_partition, part.epoch, part.offsets[0], part.next_offset)

    patch(OffsetTracker, "received", received_is_done)


def commits_before_outputs_are_acknowledged():
    """Messages are committed when the handler returns, and the outputs are sent afterwards."""
    make, attempt = Processor.__init__, Attempts.attempt
    processors = []

    def making(processor, *arguments, **options):
        processors.append(processor)
        make(processor, *arguments, **options)

    def attempted(attempts, lane, task):
        attempts._done(task)
        processors[0]._commit(5.0)
        return attempt(attempts, lane, task)

    patch(Processor, "__init__", making)
    patch(Attempts, "attempt", attempted)


def gives_outputs_new_ids():
    def identify(outputs, part, group):
        records: dict[str, list[Record]] = {}
        for topic, record, _ in outputs:
            records.setdefault(topic, []).append(record if isinstance(record, Record) else Record(record))
        return records

    patch(handler_call, "identify", identify)


def gives_dead_letters_new_ids():
    patch(dead_letters, "dead_letter", lambda *facts: replace(dead_letter(*facts), message_id=uuid.uuid4().bytes))


def commits_everything_on_revoke():
    revoked = Processor.revoked

    def careless(processor, partitions, deadline):
        for (partition, _), lane in list(processor._lanes._lanes.items()):
            for task in lane.tasks:
                part = task.part
                processor._tracker.done_range(partition, part.epoch, part.offsets[0], part.next_offset)
        processor._commit(5.0)
        revoked(processor, partitions, deadline)

    patch(Processor, "revoked", careless)


def sends_outputs_outside_of_the_transaction():
    """Outputs are committed in one transaction, and the offsets in the next."""
    deliver = TransactionalPublisher.deliver

    def twice(publisher, lane, task: Task, outputs):
        with publisher._producer.transaction():
            for topic, records in outputs.items():
                publisher._publish(topic, records)
        deliver(publisher, lane, task, {})

    patch(TransactionalPublisher, "deliver", twice)


def main(facts):
    if facts["mutant"]:
        globals()[facts["mutant"]]()
    connection = ConnectionSettings(facts["servers"], driver=facts["driver"])
    producer = open_producer(ProducerSettings(connection, linger_ms=0, transactional_id=facts["transactional_id"]))
    consumer = open_consumer(
        ConsumerSettings(
            connection,
            (facts["topic"],),
            facts["group"],
            session_timeout_seconds=2.0,
            batch_size=20,
            stop_timeout_seconds=5.0,
        )
    )

    def handler(message):
        time.sleep(facts["pace_seconds"])
        if message.value.startswith(b"bad"):
            raise ValueError("bad")
        return [(facts["out"], message.value * 2)]

    processor = Processor(
        consumer,
        handler,
        producer=producer,
        dead_letters=None if facts["transactional_id"] else DeadLetters(),
        retry=RetryPolicy(attempts=1),
        per_message=True,
        transactional=facts["transactional_id"] is not None,
    )
    signal.signal(signal.SIGTERM, lambda *_: processor.stop(5))
    print("ready", flush=True)  # noqa: T201
    with producer, consumer:
        processor.run()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
