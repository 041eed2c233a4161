# SPDX-License-Identifier: Apache-2.0
"""Producers that each lack one guarantee, as context managers: a test that still passes with them proves nothing."""

import importlib
from contextlib import ExitStack, contextmanager
from unittest import mock

from monasca_common.kafka.outgoing import new_id_prefix
from monasca_common.kafka.producer import producer as producer_module
from monasca_common.kafka.producer.outcome import Outcome
from monasca_common.kafka.producer.producer import KafkaProducer
from monasca_common.kafka.producer.report import DeliveryReport
from monasca_common.kafka.producer.table import DeliveryAttempt, next_attempt
from monasca_common.kafka.transport import confluent_producer, librdkafka_options, native
from monasca_common.kafka.transport.bounded import BoundedProducer

_UNLIMITED_BYTES = 1_000_000_000


@contextmanager
def producer_options(**overrides):
    """Create clients with options that the library never uses."""
    names = {name.replace("_", "."): value for name, value in overrides.items()}

    def options(settings):
        return {**librdkafka_options.producer_options(settings), **names}

    with ExitStack() as patches:
        patches.enter_context(mock.patch.object(confluent_producer, "producer_options", options))
        if native.reason() is None:
            native_producer = importlib.import_module(f"{native.__name__}.producer")
            patches.enter_context(mock.patch.object(native_producer, "producer_options", options))
        yield


def short_message_timeout():
    return producer_options(message_timeout_ms=1000)


def a_new_id_on_retry():
    """Give each attempt after the first a new id, so that it is another message."""

    def another_message(old, bulk):
        attempt = next_attempt(old, bulk)
        attempt.message_id = new_id_prefix()
        return attempt

    return mock.patch.object(producer_module, "next_attempt", another_message)


def produces_again_while_queued():
    """Produce an undelivered message again under its id, although it is still in flight."""

    def worth_sending(attempt):
        produced_again = attempt.outcome is None and not attempt.bulk.values
        return attempt.outcome is not Outcome.DELIVERED and not produced_again

    return mock.patch.object(DeliveryAttempt, "is_worth_sending", property(worth_sending))


def publishes_again():
    """Publish undelivered messages as if they were new, like a caller without `retry`."""

    def retry(self, report: DeliveryReport, *, timeout=None):
        now = report.with_attempts(report.latest())
        left = [attempt for attempt in report.latest().values() if attempt.outcome is not Outcome.DELIVERED]
        if not left:
            return now
        again = self.publish(left[0].bulk.topic, [attempt.record for attempt in left], timeout=timeout)
        return DeliveryReport(again._attempts, bulk=again._bulk, delivered_before=now.delivered_count)

    return mock.patch.object(KafkaProducer, "retry", retry)


def no_size_check():
    def ask(client, topics, timeout):
        return dict.fromkeys(topics, _UNLIMITED_BYTES)

    return mock.patch.object(BoundedProducer, "max_message_bytes", ask)
