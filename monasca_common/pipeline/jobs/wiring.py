# SPDX-License-Identifier: Apache-2.0
"""The outbox of a job, with a producer of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from monasca_common.kafka.entry_points import entry_point
from monasca_common.kafka.plugins import PRODUCERS
from monasca_common.pipeline.ledger import Ledger
from monasca_common.pipeline.outbox import Closing, Outbox
from monasca_common.pipeline.settings import AggregateSettings
from monasca_common.pipeline.spark.dead_letters import DeadLetterOffice
from monasca_common.pipeline.topic_view import TopicView


@contextlib.contextmanager
def open_outbox(settings: AggregateSettings, ledger: Ledger, view: TopicView) -> Iterator[Outbox]:
    """Raises `ConfigurationError` where a topic that is written to does not exist."""
    stream = settings.stream
    view.check_topics(settings.output_topic, DeadLetterOffice.of(stream).topic)
    producers = entry_point(PRODUCERS, stream.producer.connection.driver, option="driver")
    closing = Closing(settings.specifications, settings.slack_seconds * 1000)
    with producers(stream.producer) as producer:
        yield Outbox(ledger, producer, settings.output_topic, settings.publisher, closing, settings.emit)
