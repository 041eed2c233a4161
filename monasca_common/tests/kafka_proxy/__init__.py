# SPDX-License-Identifier: Apache-2.0
"""A proxy in front of Kafka that injects faults."""

from monasca_common.tests.kafka_proxy.faults import Fault
from monasca_common.tests.kafka_proxy.framing import ApiKey
from monasca_common.tests.kafka_proxy.proxy import KafkaProxy

__all__ = ["ApiKey", "Fault", "KafkaProxy"]
