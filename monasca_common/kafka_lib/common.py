# SPDX-License-Identifier: Apache-2.0
"""Error names and data types of monasca-common 3. Each error name is an alias of an error of this library, so an
``except`` clause may catch more than in monasca-common 3: `KafkaUnavailableError` was raised if no broker responded,
for any reason, so it is `TransportError` here, which includes refused credentials.
"""

from __future__ import annotations

from typing import NamedTuple

from monasca_common.kafka.errors import (
    ConfigurationError,
    MessageTooLarge,
    MessagingError,
    OffsetOutOfRange,
    QueueFull,
    RetriableError,
    TransportError,
    UndeliveredError,
)

KafkaError = MessagingError
KafkaUnavailableError = TransportError
BrokerResponseError = TransportError
UnknownTopicOrPartitionError = TransportError
ConnectionError = RetriableError  # noqa: A001 - the name in monasca-common 3
KafkaTimeoutError = RetriableError
LeaderNotAvailableError = RetriableError
NotLeaderForPartitionError = RetriableError
RequestTimedOutError = RetriableError
FailedPayloadsError = UndeliveredError
MessageSizeTooLargeError = MessageTooLarge
AsyncProducerQueueFull = QueueFull
OffsetOutOfRangeError = OffsetOutOfRange
KafkaConfigurationError = ConfigurationError


class OffsetRequest(NamedTuple):
    """A request for `KafkaClient.send_offset_request`: ``time`` -1 for the end of a partition, -2 for the offset of its
    oldest record. ``max_offsets`` is ignored: the response has one offset."""

    topic: bytes
    partition: int
    time: int
    max_offsets: int


class OffsetResponse(NamedTuple):
    """The response; ``error`` is always 0, because errors are raised."""

    topic: bytes
    partition: int
    error: int
    offsets: tuple[int, ...]
