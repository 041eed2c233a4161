# SPDX-License-Identifier: Apache-2.0
"""Detects a topic that was deleted and recreated while a client uses it, which Kafka itself does not report.

A reader would continue at its old offset and skip records. Acknowledged messages of a writer may be lost with the old
topic.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from monasca_common.kafka.errors import TopicRecreated
from monasca_common.kafka.safe_log import SafeLogger
from monasca_common.kafka.transport.base import ConsumerTransport, ProducerTransport

LOG = SafeLogger(__name__)

_ANSWER_SECONDS = 10.0


class TopicWatch:
    """Compares the topics' ids every ``interval`` seconds, on a separate thread.

    The first recreated topic sets `failure` and ends the watch. If ``on_recreated`` is set, the thread calls it for
    each recreated topic instead, and continues with the new id.
    """

    def __init__(
        self,
        client: ConsumerTransport | ProducerTransport,
        topics: Iterable[str],
        interval: float,
        *,
        on_recreated: Callable[[TopicRecreated], None] | None = None,
    ) -> None:
        self._client = client
        self._topics = list(topics)
        self._interval = interval
        self._on_recreated = on_recreated
        self._ids: dict[str, str] = {}
        self._wake = threading.Event()
        self._started = False
        self._stopped = False
        self._unanswered = False
        self.failure: TopicRecreated | None = None

    def start(self) -> None:
        threading.Thread(target=self._run, name="kafka-topic-watch", daemon=True).start()
        self._started = True

    def add(self, topic: str) -> None:
        """Watch one more topic, from its current id. Only one thread at a time may call this."""
        if self._interval <= 0 or self._stopped or topic in self._topics:
            return
        self._topics.append(topic)
        if self._started:
            self._wake.set()
        else:
            self.start()

    def stop(self) -> None:
        self._stopped = True
        self._wake.set()

    def check(self) -> None:
        """Compare the ids once. A missing topic keeps its old id, because it can be recreated with a new one."""
        topics = list(self._topics)
        try:
            ids = self._client.topic_ids(topics, _ANSWER_SECONDS)
        except Exception as error:  # for example, no thread can be started
            if not (self._unanswered or self._stopped):
                LOG.warning("cannot determine whether topics %s were recreated: %s", ", ".join(topics), error)
            self._unanswered = True
            return
        self._unanswered = False
        for topic, topic_id in ids.items():
            known = self._ids.setdefault(topic, topic_id)
            if known != topic_id:
                self._recreated(TopicRecreated(topic, known, topic_id))

    def _recreated(self, found: TopicRecreated) -> None:
        if self._on_recreated is not None:
            self._ids[found.topic] = found.new_id
            self._on_recreated(found)
        elif self.failure is None:
            self.failure = found

    def _run(self) -> None:
        while not self._stopped and self.failure is None:
            self.check()
            self._wake.wait(self._interval)
            self._wake.clear()
