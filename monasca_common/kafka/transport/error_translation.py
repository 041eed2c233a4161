# SPDX-License-Identifier: Apache-2.0
"""Translates confluent-kafka's errors to this library's errors; only this module uses confluent-kafka's codes."""

from __future__ import annotations

from typing import Any

from confluent_kafka import KafkaError, KafkaException

from monasca_common.kafka.errors import (
    AuthenticationError,
    AuthorizationError,
    FatalError,
    FencedError,
    RetriableError,
    TransportError,
)

_KINDS: dict[int, type[TransportError]] = {
    KafkaError._AUTHENTICATION: AuthenticationError,
    KafkaError._SSL: AuthenticationError,
    KafkaError.SASL_AUTHENTICATION_FAILED: AuthenticationError,
    KafkaError.TOPIC_AUTHORIZATION_FAILED: AuthorizationError,
    KafkaError.GROUP_AUTHORIZATION_FAILED: AuthorizationError,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: AuthorizationError,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: AuthorizationError,
    KafkaError._FENCED: FencedError,
    KafkaError.PRODUCER_FENCED: FencedError,
    KafkaError.INVALID_PRODUCER_EPOCH: FencedError,
    KafkaError.FENCED_INSTANCE_ID: FencedError,
    KafkaError._FATAL: FatalError,
}
_RETRIABLE = frozenset(
    {
        KafkaError._TRANSPORT,
        KafkaError._RESOLVE,  # the name of one broker, for example of a stopped pod; other brokers may respond
        KafkaError._DESTROY_BROKER,  # the broker has just left the cluster's metadata
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._TIMED_OUT,
        KafkaError._MSG_TIMED_OUT,
        KafkaError._WAIT_COORD,
        KafkaError._QUEUE_FULL,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.FENCED_LEADER_EPOCH,  # the client or the broker does not know a partition's latest leader yet
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.NOT_ENOUGH_REPLICAS,
        KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError.CONCURRENT_TRANSACTIONS,
        KafkaError.UNSTABLE_OFFSET_COMMIT,
    }
)

_NOT_TRUSTED = "certificate verify failed"
_WHY_NOT_TRUSTED = (
    "the broker's certificate has expired, or is for another host than the one in bootstrap_servers or "
    "advertised.listeners, or comes from an authority that is not in tls_ca_file (the client does not report which; "
    "`openssl s_client -connect HOST:PORT -verify_hostname HOST -CAfile FILE` does)"
)


def translate(error: KafkaError | BaseException) -> TransportError:
    """Return ``error`` as a `TransportError`, with its code, its name and whether it is fatal."""
    if isinstance(error, KafkaException) and error.args and isinstance(error.args[0], KafkaError):
        error = error.args[0]
    if isinstance(error, BufferError):
        return RetriableError("the client's queue is full", code=KafkaError._QUEUE_FULL, name="_QUEUE_FULL")
    if not isinstance(error, KafkaError):
        return TransportError(f"{type(error).__name__}: {error}")
    code, text = error.code(), error.str()
    if code in (KafkaError._SSL, KafkaError._TRANSPORT) and _NOT_TRUSTED in text:
        # The client raises it with either code, and the same text for each cause.
        code, text = KafkaError._SSL, f"{text.partition(_NOT_TRUSTED)[0]}{_NOT_TRUSTED}: {_WHY_NOT_TRUSTED}"
    facts: dict[str, Any] = {"code": code, "name": KafkaError(code).name(), "fatal": bool(error.fatal())}
    return _kind(error, code)(f"{facts['name']}: {text}", **facts)


def _kind(error: KafkaError, code: int) -> type[TransportError]:
    if code in _KINDS or error.fatal():
        return _KINDS.get(code, FatalError)
    return RetriableError if code in _RETRIABLE or error.retriable() else TransportError
