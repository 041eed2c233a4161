# SPDX-License-Identifier: Apache-2.0
"""The producer of an executor process."""

from __future__ import annotations

import functools
import pickle
from dataclasses import replace

from monasca_common.kafka import KafkaProducer, open_producer
from monasca_common.kafka.settings import ConsumerSettings, ProducerSettings


@functools.lru_cache(maxsize=1)
def worker_producer(settings: bytes) -> KafkaProducer:
    """The producer of this worker process, which lives as long as the process. Callers wait for every message.

    ``settings``: the result of `portable`.
    """
    read: ProducerSettings = pickle.loads(settings)
    return open_producer(read)


def portable(settings: ConsumerSettings | ProducerSettings) -> bytes:
    """The settings as bytes for executors: read-only views of dictionaries cannot be pickled directly."""
    connection = replace(settings.connection, security=dict(settings.connection.security))
    return pickle.dumps(replace(settings, connection=connection, options=dict(settings.options)))
