# SPDX-License-Identifier: Apache-2.0
"""Notices a topic that was deleted and made again, which a live consumer would read on from, skipping records."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

from monasca_common.kafka.errors import MessagingError, TopicRecreated
from monasca_common.kafka.transport.base import ConsumerTransport

LOG = logging.getLogger(__name__)

_ANSWER_SECONDS = 10.0


class TopicWatch:
    """Compares the topics' ids every ``interval`` seconds, on a thread of its own; `failure` is what it found."""

    def __init__(self, transport: ConsumerTransport, topics: Sequence[str], interval: float) -> None:
        self._transport = transport
        self._topics = tuple(topics)
        self._interval = interval
        self._ids: dict[str, str] = {}
        self._stop = threading.Event()
        self._unanswered = False
        self.failure: TopicRecreated | None = None

    def start(self) -> None:
        threading.Thread(target=self._run, name="kafka-topic-watch", daemon=True).start()

    def stop(self) -> None:
        self._stop.set()

    def check(self) -> None:
        """Compare once. A topic that is missing keeps its id: it may come back as another."""
        try:
            ids = self._transport.topic_ids(self._topics, _ANSWER_SECONDS)
        except MessagingError as error:
            if not self._unanswered:
                LOG.warning("cannot tell whether topics %s were made again: %s", ", ".join(self._topics), error)
            self._unanswered = True
            return
        self._unanswered = False
        for topic, topic_id in ids.items():
            known = self._ids.setdefault(topic, topic_id)
            if known != topic_id and self.failure is None:
                self.failure = TopicRecreated(topic, known, topic_id)

    def _run(self) -> None:
        self.check()
        while self.failure is None and not self._stop.wait(self._interval):
            self.check()
