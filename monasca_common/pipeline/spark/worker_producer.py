# SPDX-License-Identifier: Apache-2.0
"""The producer of an executor's process."""

from __future__ import annotations

import functools
import pickle
from dataclasses import replace

from monasca_common.kafka.entry_points import entry_point
from monasca_common.kafka.plugins import PRODUCERS
from monasca_common.kafka.producer import KafkaProducer
from monasca_common.kafka.settings import ConsumerSettings, ProducerSettings


@functools.lru_cache(maxsize=1)
def worker_producer(settings: bytes) -> KafkaProducer:
    """One for each of the worker's processes, and for as long as it lives: every message is waited for.

    ``settings``: what `portable` has made.
    """
    read: ProducerSettings = pickle.loads(settings)
    return entry_point(PRODUCERS, read.connection.driver, option="driver")(read)  # type: ignore[no-any-return]


def portable(settings: ConsumerSettings | ProducerSettings) -> bytes:
    """For executors. Read-only views of dictionaries cannot be pickled."""
    connection = replace(settings.connection, security=dict(settings.connection.security))
    return pickle.dumps(replace(settings, connection=connection, options=dict(settings.options)))
