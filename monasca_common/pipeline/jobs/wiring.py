# SPDX-License-Identifier: Apache-2.0
"""The outbox of a job, with a producer of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from monasca_common.kafka import open_producer
from monasca_common.pipeline.aggregate.periods import Closing, Outbox
from monasca_common.pipeline.settings import AggregateSettings
from monasca_common.pipeline.source.offset_store import OffsetStore
from monasca_common.pipeline.source.topic import SourceTopic
from monasca_common.pipeline.spark.rejected import dead_letter_topic


@contextlib.contextmanager
def open_outbox(settings: AggregateSettings, offset_store: OffsetStore, topic: SourceTopic) -> Iterator[Outbox]:
    """Open the outbox. Raises `ConfigurationError` if a topic that it writes to does not exist."""
    stream = settings.stream
    topic.check_topics(settings.output_topic, dead_letter_topic(stream))
    closing = Closing(settings.specifications, settings.slack_seconds * 1000)
    with open_producer(stream.producer) as producer:
        yield Outbox(offset_store, producer, settings.output_topic, settings.publisher, closing, settings.emit)
