# SPDX-License-Identifier: Apache-2.0
"""Changes permissions and topics while a test runs, as an operator does with Kafka's own tools."""

from typing import NamedTuple

from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourcePatternType,
    ResourceType,
)

_SECONDS = 10.0


class Permission(NamedTuple):
    """A permission of a principal: ``Permission("User:alice", "write", "topic", "metrics")``.

    ``operation``: read, write, describe, ...; ``resource``: topic or group.
    """

    principal: str
    operation: str
    resource: str
    name: str


def allow(admin, *permissions):
    admin._all(admin._client.create_acls(_bindings(AclBinding, permissions)), _SECONDS)


def revoke(admin, *permissions):
    """Revoke these permissions; one that was never granted is not an error."""
    admin._all(admin._client.delete_acls(_bindings(AclBindingFilter, permissions)), _SECONDS)


def _bindings(kind, permissions):
    literal, allowed = ResourcePatternType.LITERAL, AclPermissionType.ALLOW
    return [
        kind(ResourceType[resource.upper()], name, literal, principal, "*", AclOperation[operation.upper()], allowed)
        for principal, operation, resource, name in permissions
    ]


def set_topic_config(admin, topic, config):
    """Change these settings of a topic, leaving its others as they are."""
    entries = [ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in config.items()]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    admin._all(admin._client.incremental_alter_configs([resource]), _SECONDS)
