# SPDX-License-Identifier: Apache-2.0
"""Changes settings of a topic while a test runs, as an operator does with Kafka's own tools."""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from monasca_common.kafka import Admin

_SECONDS = 10.0


def set_topic_config(admin: Admin, topic: str, config: Mapping[str, str]) -> None:
    """Change these settings of a topic, leaving its others as they are."""
    entries = [ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in config.items()]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    for future in admin._client.incremental_alter_configs([resource]).values():
        future.result(_SECONDS)
