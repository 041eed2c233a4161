# SPDX-License-Identifier: Apache-2.0
"""Producers that lack one guarantee each, as context managers: a test that they pass proves nothing."""

from contextlib import contextmanager
from unittest import mock

from monasca_common.kafka.producer import KafkaProducer, outgoing, topic_limits
from monasca_common.kafka.producer.outcome import Outcome
from monasca_common.kafka.producer.outgoing import Outgoing
from monasca_common.kafka.producer.report import DeliveryReport
from monasca_common.kafka.transport import confluent_producer

_UNLIMITED_BYTES = 1_000_000_000


def producer_options(**overrides):
    """A client with other options than the library would ever give it."""
    real = confluent_producer.producer_options
    names = {name.replace("_", "."): value for name, value in overrides.items()}
    return mock.patch.object(confluent_producer, "producer_options", lambda settings: {**real(settings), **names})


def short_message_timeout():
    return producer_options(message_timeout_ms=1000)


def a_new_id_on_retry():
    """An attempt after the first is another message."""
    real = Outgoing.again

    def again(self, old):
        pending = real(self, old)
        pending.message_id = self._ids.next()
        return pending

    return mock.patch.object(Outgoing, "again", again)


def produces_again_while_queued():
    """Whatever is not delivered is produced once more, on its way or not; under its old id."""

    def worth_sending(pending):
        produced_again = (pending.topic, pending.message_id) in pending.ledger.own_ids
        return pending.outcome is not Outcome.DELIVERED and not produced_again

    return mock.patch.object(outgoing, "_worth_sending", worth_sending)


@contextmanager
def publishes_again():
    """What a caller without `retry` does: the undelivered are published as if they were new."""

    def retry(self, report: DeliveryReport, *, timeout=None):
        left = [p for p in report._pendings if p.outcome is not Outcome.DELIVERED]
        if not left:
            return DeliveryReport(report._pendings, delivered_before=report._delivered_before)
        again = self.publish(left[0].topic, [pending.record for pending in left], timeout=timeout)
        return DeliveryReport(again._pendings, delivered_before=report.delivered_count)

    with mock.patch.object(KafkaProducer, "retry", retry):
        yield


def no_size_check():
    def ask(self, topics):
        return dict.fromkeys(topics, _UNLIMITED_BYTES)

    return mock.patch.object(topic_limits.TopicLimits, "_ask", ask)
