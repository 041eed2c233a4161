# SPDX-License-Identifier: Apache-2.0
"""Producers and consumers whose every outcome is known. Importing this imports no Kafka client."""

from monasca_common.kafka.commit import CommitResult
from monasca_common.kafka.consumer import ConsumerHealth, KafkaConsumer
from monasca_common.kafka.consuming.rebalance import RebalanceListener
from monasca_common.kafka.dead_letter import DeadLetters
from monasca_common.kafka.delivery import Delivery, DeliveryReport
from monasca_common.kafka.errors import (
    AuthenticationError,
    AuthorizationError,
    ClosedError,
    CommitUnknown,
    ConfigurationError,
    ConsumerError,
    DeadLetterLimit,
    DeliveryAbandoned,
    DeliveryError,
    DeliveryRefused,
    DeliveryTimeout,
    FatalError,
    FencedError,
    ForkedError,
    HandlerError,
    InCallbackError,
    MessageTooLarge,
    MessagingError,
    MisuseError,
    OffsetOutOfRange,
    Poison,
    QueueFull,
    ReadFrom,
    RetriableError,
    RetryLater,
    SerializationError,
    StaleCommit,
    TopicRecreated,
    TransactionError,
    TransportError,
    UndeliveredError,
    WrongType,
)
from monasca_common.kafka.hooks import Hook, load_hooks
from monasca_common.kafka.message import Batch, Headers, Message, PartitionBatch, Record, TopicPartition
from monasca_common.kafka.plugins import load_admin, load_consumer, load_producer, load_serializer
from monasca_common.kafka.processing.outputs import Output
from monasca_common.kafka.processing.stopping import StopReport
from monasca_common.kafka.processor import Processor
from monasca_common.kafka.producer import KafkaProducer, ProducerHealth
from monasca_common.kafka.retry import RetryPolicy
from monasca_common.kafka.serialization.base import Serializer
from monasca_common.kafka.transaction import Transaction

__all__ = [
    "AuthenticationError",
    "AuthorizationError",
    "Batch",
    "ClosedError",
    "CommitResult",
    "CommitUnknown",
    "ConfigurationError",
    "ConsumerError",
    "ConsumerHealth",
    "DeadLetterLimit",
    "DeadLetters",
    "Delivery",
    "DeliveryAbandoned",
    "DeliveryError",
    "DeliveryRefused",
    "DeliveryReport",
    "DeliveryTimeout",
    "FatalError",
    "FencedError",
    "ForkedError",
    "HandlerError",
    "Headers",
    "Hook",
    "InCallbackError",
    "KafkaConsumer",
    "KafkaProducer",
    "Message",
    "MessageTooLarge",
    "MessagingError",
    "MisuseError",
    "OffsetOutOfRange",
    "Output",
    "PartitionBatch",
    "Poison",
    "Processor",
    "ProducerHealth",
    "QueueFull",
    "ReadFrom",
    "RebalanceListener",
    "Record",
    "RetriableError",
    "RetryLater",
    "RetryPolicy",
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
    "load_admin",
    "load_consumer",
    "load_hooks",
    "load_producer",
    "load_serializer",
]
