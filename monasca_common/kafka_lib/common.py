# SPDX-License-Identifier: Apache-2.0
"""The names that monasca-common 3 had for errors, each an error of this library's tree, and the values of its calls.

A name may catch more than it did: `KafkaUnavailableError` was whatever kept every broker from answering, so it is
`TransportError` here, refused credentials included.
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
ConnectionError = RetriableError  # noqa: A001 - a name that is given
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
    """A question for `KafkaClient.send_offset_request`: ``time`` -1 asks for the end of a partition, -2 for the offset
    of its oldest record. ``max_offsets`` is ignored: one comes."""

    topic: bytes
    partition: int
    time: int
    max_offsets: int


class OffsetResponse(NamedTuple):
    """The answer; ``error`` is always 0, because errors are raised."""

    topic: bytes
    partition: int
    error: int
    offsets: tuple[int, ...]
