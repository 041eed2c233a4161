# SPDX-License-Identifier: Apache-2.0
"""Clients with the signatures that Monasca services use, based on the producer and consumer of this library."""

from monasca_common.kafka.client_factory.factory import get_kafka_consumer, get_kafka_producer

__all__ = ["get_kafka_consumer", "get_kafka_producer"]
