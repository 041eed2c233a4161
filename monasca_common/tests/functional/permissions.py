# SPDX-License-Identifier: Apache-2.0
"""Grants and revokes permissions on the development broker."""

from dataclasses import dataclass

from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

_SECONDS = 10.0


@dataclass(frozen=True)
class Permission:
    """A permission of a principal: ``Permission("User:alice", "write", "topic", "metrics")``.

    ``operation``: read, write, describe, ...; ``resource``: topic or group.
    """

    principal: str
    operation: str
    resource: str
    name: str

    def binding(self, kind):
        return kind(
            ResourceType[self.resource.upper()],
            self.name,
            ResourcePatternType.LITERAL,
            self.principal,
            "*",
            AclOperation[self.operation.upper()],
            AclPermissionType.ALLOW,
        )


def allow(admin, *permissions):
    """Grant these permissions."""
    admin._all(admin._client.create_acls([each.binding(AclBinding) for each in permissions]), _SECONDS)


def revoke(admin, *permissions):
    """Revoke these permissions; one that was never granted is not an error."""
    admin._all(admin._client.delete_acls([each.binding(AclBindingFilter) for each in permissions]), _SECONDS)
