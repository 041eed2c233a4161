# SPDX-License-Identifier: Apache-2.0
"""Producers and consumers that report the outcome of every message. Importing this package imports no Kafka client.

This is the public interface: other packages import from here, not from producer, consumer, processor or transport.
"""

from typing import TYPE_CHECKING, Any

from monasca_common.kafka.clock import Clock
from monasca_common.kafka.consumer.commit import CommitResult
from monasca_common.kafka.consumer.consumer import ConsumerHealth, KafkaConsumer
from monasca_common.kafka.consumer.rebalance import GivenStarts, RebalanceListener
from monasca_common.kafka.errors import (
    AuthenticationError,
    AuthorizationError,
    ClosedError,
    CommitUnknown,
    ConfigurationError,
    ConsumerError,
    DeadLetterLimit,
    Delivery,
    DeliveryAbandoned,
    DeliveryError,
    DeliveryRefused,
    DeliveryTimeout,
    FatalError,
    FencedError,
    ForkedError,
    HandlerError,
    InCallbackError,
    LargerThanBudget,
    MessageTooLarge,
    MessagingError,
    MisuseError,
    OffsetOutOfRange,
    Poison,
    QueueFull,
    ReadFrom,
    RegistryUnavailable,
    RetriableError,
    RetryLater,
    SchemaRefused,
    SerializationError,
    StaleCommit,
    TopicRecreated,
    TransactionError,
    TransportError,
    UndeliveredError,
    WrongType,
)
from monasca_common.kafka.message import (
    Batch,
    DeliveryTap,
    Headers,
    IdentifiedRecords,
    Message,
    PartitionBatch,
    Record,
    TopicPartition,
)
from monasca_common.kafka.outgoing import portions
from monasca_common.kafka.plugins import (
    entry_point,
    load_admin,
    load_consumer,
    load_hooks,
    load_producer,
    load_serializer,
    open_admin,
    open_consumer,
    open_producer,
)
from monasca_common.kafka.processor import dead_letters
from monasca_common.kafka.processor.dead_letters import DeadLetters
from monasca_common.kafka.processor.handler_call import Output
from monasca_common.kafka.processor.hooks import Hook
from monasca_common.kafka.processor.processor import Processor
from monasca_common.kafka.processor.retry import RetryPolicy
from monasca_common.kafka.processor.shutdown import StopReport
from monasca_common.kafka.producer.producer import KafkaProducer, ProducerHealth
from monasca_common.kafka.producer.report import DeliveryReport
from monasca_common.kafka.producer_pool import PooledProducer, ProducerPool
from monasca_common.kafka.serialization.base import SerializationContext, Serializer
from monasca_common.kafka.settings import ConnectionSettings, ConsumerSettings, ProducerSettings
from monasca_common.kafka.transaction import Transaction

if TYPE_CHECKING:
    from monasca_common.kafka.transport.admin import Admin

__all__ = [
    "Admin",
    "AuthenticationError",
    "AuthorizationError",
    "Batch",
    "Clock",
    "ClosedError",
    "CommitResult",
    "CommitUnknown",
    "ConfigurationError",
    "ConnectionSettings",
    "ConsumerError",
    "ConsumerHealth",
    "ConsumerSettings",
    "DeadLetterLimit",
    "DeadLetters",
    "Delivery",
    "DeliveryAbandoned",
    "DeliveryError",
    "DeliveryRefused",
    "DeliveryReport",
    "DeliveryTap",
    "DeliveryTimeout",
    "FatalError",
    "FencedError",
    "ForkedError",
    "GivenStarts",
    "HandlerError",
    "Headers",
    "Hook",
    "IdentifiedRecords",
    "InCallbackError",
    "KafkaConsumer",
    "KafkaProducer",
    "LargerThanBudget",
    "Message",
    "MessageTooLarge",
    "MessagingError",
    "MisuseError",
    "OffsetOutOfRange",
    "Output",
    "PartitionBatch",
    "Poison",
    "PooledProducer",
    "Processor",
    "ProducerHealth",
    "ProducerPool",
    "ProducerSettings",
    "QueueFull",
    "ReadFrom",
    "RebalanceListener",
    "Record",
    "RegistryUnavailable",
    "RetriableError",
    "RetryLater",
    "RetryPolicy",
    "SchemaRefused",
    "SerializationContext",
    "SerializationError",
    "Serializer",
    "StaleCommit",
    "StopReport",
    "TopicPartition",
    "TopicRecreated",
    "Transaction",
    "TransactionError",
    "TransportError",
    "UndeliveredError",
    "WrongType",
    "dead_letters",
    "entry_point",
    "load_admin",
    "load_consumer",
    "load_hooks",
    "load_producer",
    "load_serializer",
    "open_admin",
    "open_consumer",
    "open_producer",
    "portions",
]


def __getattr__(name: str) -> Any:
    """Import `Admin` on first use, because it imports the Kafka client."""
    if name == "Admin":
        from monasca_common.kafka.transport.admin import Admin

        return Admin
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
