# SPDX-License-Identifier: Apache-2.0
"""A member of a group in its own process, so that a test can kill it."""

import multiprocessing

from monasca_common.kafka import plugins
from monasca_common.kafka.settings import ConnectionSettings, ConsumerSettings
from monasca_common.tests.waiting import PATIENCE_SECONDS

_SPAWN = multiprocessing.get_context("spawn")


class MemberProcess:
    """Starts a member process and waits until it owns partitions. ``changes``: fields of `ConsumerSettings`."""

    def __init__(self, servers, topic, group, changes):
        owns = _SPAWN.Event()
        self._process = _SPAWN.Process(target=_poll, args=(servers, topic, group, changes, owns), daemon=True)
        self._process.start()
        if not owns.wait(PATIENCE_SECONDS):
            self.kill()
            raise AssertionError("the member owns no partition")

    def kill(self):
        """Send SIGKILL; a second call has no effect."""
        self._process.kill()
        self._process.join()


def _poll(servers, topic, group, changes, owns):
    settings = ConsumerSettings(ConnectionSettings(servers), (topic,), group, **changes)
    with plugins.kafka_consumer(settings) as consumer:
        while True:
            consumer.poll(timeout=0.1)
            if consumer.assignment():
                owns.set()
