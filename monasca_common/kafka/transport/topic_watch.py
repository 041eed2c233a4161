# SPDX-License-Identifier: Apache-2.0
"""Detects a topic that was deleted and recreated under a live reader, which Kafka itself does not report: the reader
would continue at its old offset and skip records.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

from monasca_common.kafka.errors import MessagingError, TopicRecreated
from monasca_common.kafka.safe_log import SafeLogger
from monasca_common.kafka.transport.base import ConsumerTransport

LOG = SafeLogger(__name__)

_ANSWER_SECONDS = 10.0


class TopicWatch:
    """Compares the topics' ids every ``interval`` seconds, on a separate thread. The first recreated topic sets
    `failure` and ends the watch."""

    def __init__(self, client: ConsumerTransport, topics: Iterable[str], interval: float) -> None:
        self._client = client
        self._topics = list(topics)
        self._interval = interval
        self._ids: dict[str, str] = {}
        self._wake = threading.Event()
        self._stopped = False
        self._unanswered = False
        self.failure: TopicRecreated | None = None

    def start(self) -> None:
        threading.Thread(target=self._run, name="kafka-topic-watch", daemon=True).start()

    def stop(self) -> None:
        self._stopped = True
        self._wake.set()

    def check(self) -> None:
        """Compare the ids once. A missing topic keeps its old id, because it can be recreated with a new one."""
        try:
            ids = self._client.topic_ids(self._topics, _ANSWER_SECONDS)
        except MessagingError as error:
            if not (self._unanswered or self._stopped):
                LOG.warning("cannot find out whether topics %s were recreated: %s", ", ".join(self._topics), error)
            self._unanswered = True
            return
        self._unanswered = False
        for topic, topic_id in ids.items():
            known = self._ids.setdefault(topic, topic_id)
            if known != topic_id and self.failure is None:
                self.failure = TopicRecreated(topic, known, topic_id)

    def _run(self) -> None:
        while not self._stopped and self.failure is None:
            self._wake.clear()
            self.check()
            if not self._stopped and self.failure is None:
                self._wake.wait(self._interval)
