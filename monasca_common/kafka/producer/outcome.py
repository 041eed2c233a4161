# SPDX-License-Identifier: Apache-2.0
"""The outcome of each message.

*delivered*: a broker acknowledged it. *failed*: it is definitely not in the log. *unknown*: anything else.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from monasca_common.kafka.errors import (
    Delivery,
    DeliveryAbandoned,
    DeliveryError,
    DeliveryRefused,
    TransportError,
)

PURGED = frozenset({"_PURGE_QUEUE", "_PURGE_INFLIGHT"})  # the client dropped the message because of a purge
# The broker's errors that exclude an append, because its checks before the write return them. After any other error,
# including future error codes, a message is *unknown*. The following errors sound like rejections, but do not exclude
# an append: DUPLICATE_SEQUENCE_NUMBER (the broker has the message), OUT_OF_ORDER_SEQUENCE_NUMBER, UNKNOWN_PRODUCER_ID
# and INVALID_PRODUCER_EPOCH (an earlier attempt may have been written), NOT_ENOUGH_REPLICAS_AFTER_APPEND,
# REQUEST_TIMED_OUT and NOT_LEADER_FOR_PARTITION (also returned if an append was not replicated in time, or
# whose leader moved in the meantime), KAFKA_STORAGE_ERROR (part of the batch may be on disk), NETWORK_EXCEPTION.
_NEVER_APPENDED = frozenset(
    {
        "INVALID_MSG",
        "UNKNOWN_TOPIC_OR_PART",
        "MSG_SIZE_TOO_LARGE",
        "TOPIC_EXCEPTION",
        "RECORD_LIST_TOO_LARGE",
        "NOT_ENOUGH_REPLICAS",
        "INVALID_REQUIRED_ACKS",
        "TOPIC_AUTHORIZATION_FAILED",
        "CLUSTER_AUTHORIZATION_FAILED",
        "INVALID_TIMESTAMP",
        "UNSUPPORTED_FOR_MESSAGE_FORMAT",
        "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
        "UNSUPPORTED_COMPRESSION_TYPE",
        "INVALID_RECORD",
    }
)
# The message itself is refused, not its timestamp or sender, so a retry is useless.
_PERMANENT = frozenset({"INVALID_RECORD", "INVALID_MSG"})
# The broker refuses a whole batch with this error if one of its messages has an invalid timestamp set by a caller.
_FOR_ITS_TIME = "INVALID_TIMESTAMP"


class Outcome(Enum):
    DELIVERED = "delivered"
    FAILED = "failed"
    UNKNOWN = "unknown"


DeliveryListener = Callable[[Delivery], None]


def classify(cause: TransportError, *, trouble: bool, own_time: bool = False) -> tuple[Outcome, DeliveryError]:
    """Return the outcome of a message that the client returned with ``cause``.

    A message is *failed* only if it is definitely not in the log: the client never sent it, or the broker's response
    excludes an append. ``trouble``: a connection error occurred since the message was queued, so an attempt before the
    rejected one may have been written; then even such a response means *unknown*. (A message that is sent again after
    an unknown outcome never becomes *failed*: see `Table`.) ``own_time``: whether the caller set the timestamp.
    """
    if cause.name in PURGED:
        return Outcome.UNKNOWN, DeliveryAbandoned("abandoned by the producer before the broker responded")
    if cause.name == "_UNKNOWN_PARTITION":
        return Outcome.FAILED, DeliveryRefused(cause, permanent=False)
    if cause.name in _NEVER_APPENDED and not trouble:
        permanent = cause.name in _PERMANENT or (cause.name == _FOR_ITS_TIME and own_time)
        return Outcome.FAILED, DeliveryRefused(cause, permanent=permanent)
    return Outcome.UNKNOWN, DeliveryRefused(cause, permanent=False)
