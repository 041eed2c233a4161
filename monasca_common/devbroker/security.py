# SPDX-License-Identifier: Apache-2.0
"""The authentication and encryption of a local cluster, for brokers and clients."""

import base64
import hashlib
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from monasca_common.devbroker.errors import InvalidCluster

ADMIN = "admin"  # super user
DEFAULT_USERS: Mapping[str, str] = MappingProxyType({ADMIN: "admin-secret", "monasca": "monasca-secret"})

_MECHANISM = "SCRAM-SHA-512"
_ITERATIONS = 4096  # Kafka's minimum
_LOGIN = "org.apache.kafka.common.security.{module} required {options};"
# The user for connections between brokers with ACLs; clients do not use it.
_INTERNAL_USER, _INTERNAL_PASSWORD = "internal", "internal-secret"


@dataclass(frozen=True, slots=True)
class Security:
    """The security of the listener for clients.

    ==== ==== ================================================================
    tls  sasl the listener for clients
    ==== ==== ================================================================
    no   no   PLAINTEXT
    yes  no   SSL; client certificates are optional, and required with ``acl``
    no   yes  SASL_PLAINTEXT with SCRAM-SHA-512
    yes  yes  SASL_SSL with SCRAM-SHA-512; a second listener for mutual TLS
    ==== ==== ================================================================

    ``acl``: users except ``admin`` need permissions (`Admin.allow`). Requires ``tls`` or ``sasl``, because anonymous
    users have no permissions. ``users``: passwords by user name, always including ``admin``; the principal is
    ``User:<name>`` for both passwords and certificates.
    """

    tls: bool = False
    sasl: bool = False
    acl: bool = False
    users: Mapping[str, str] = field(default_factory=lambda: DEFAULT_USERS, repr=False)

    def __post_init__(self) -> None:
        if self.acl and not (self.tls or self.sasl):
            raise InvalidCluster("acl without tls or sasl refuses all users as anonymous: add tls or sasl")
        if ADMIN not in self.users:
            object.__setattr__(self, "users", MappingProxyType({**self.users, ADMIN: DEFAULT_USERS[ADMIN]}))

    @property
    def protocol(self) -> str:
        """The protocol of the listener for clients."""
        return ("SASL_" if self.sasl else "") + ("SSL" if self.tls else "PLAINTEXT")

    @property
    def internal_protocol(self) -> str:
        """The protocol of the listeners of brokers and controllers."""
        return "SASL_PLAINTEXT" if self.acl else "PLAINTEXT"

    @property
    def has_mutual_tls(self) -> bool:
        """Whether a second listener accepts clients with certificates."""
        return self.tls and self.sasl

    def server_properties(self, certificates: Path) -> dict[str, str]:
        """Return the broker's properties. ``certificates``: the folder written by `issue`."""
        properties: dict[str, str] = {}
        if self.tls:
            properties |= _tls(certificates)
            properties["listener.name.client.ssl.client.auth"] = self._client_certificate()
            properties["listener.name.mtls.ssl.client.auth"] = "required"
        if self.sasl:
            properties |= _mechanism("client", _MECHANISM, "scram.ScramLoginModule")
        if self.acl:
            properties |= _authorizer()
        return properties

    def format_arguments(self) -> list[str]:
        """Return arguments for the storage tool, which stores the users' credentials before the first start. They
        contain salted hashes, which neither reveal the passwords nor contain characters that are special to the tool.
        """
        if not self.sasl:
            return []
        return [part for user in self.users.items() for part in ("--add-scram", _scram_credential(*user))]

    def client_options(self, user: str, certificates: Path) -> dict[str, str]:
        """Return librdkafka's options for ``user``, without ``bootstrap.servers``."""
        if user not in self.users:
            raise InvalidCluster(f"there is no user {user!r}: the users are {', '.join(sorted(self.users))}")
        options = {} if self.protocol == "PLAINTEXT" else {"security.protocol": self.protocol}
        if self.tls:
            options["ssl.ca.location"] = str(certificates / "ca.pem")
        if self.sasl:
            password = self.users[user]
            options |= {"sasl.mechanism": _MECHANISM, "sasl.username": user, "sasl.password": password}
        elif self.tls:
            options |= _client_certificate_files(user, certificates)
        return options

    def mutual_tls_options(self, user: str, certificates: Path) -> dict[str, str]:
        """Return librdkafka's options for ``user`` with a certificate, without ``bootstrap.servers``."""
        ca = {"security.protocol": "SSL", "ssl.ca.location": str(certificates / "ca.pem")}
        return ca | _client_certificate_files(user, certificates)

    def internal_options(self) -> dict[str, str]:
        """Return librdkafka's options for the brokers' own listener, on which the client is a super user."""
        if not self.acl:
            return {}
        return {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": _INTERNAL_USER,
            "sasl.password": _INTERNAL_PASSWORD,
        }

    def _client_certificate(self) -> str:
        if self.sasl:
            return "none"
        return "required" if self.acl else "requested"


def _scram_credential(name: str, password: str) -> str:
    salt = secrets.token_bytes(16)
    salted = hashlib.pbkdf2_hmac("sha512", password.encode(), salt, _ITERATIONS)
    shown = {"salt": salt, "saltedpassword": salted}
    encoded = ",".join(f'{each}="{base64.b64encode(value).decode()}"' for each, value in shown.items())
    return f"{_MECHANISM}=[name={name},iterations={_ITERATIONS},{encoded}]"


def _tls(certificates: Path) -> dict[str, str]:
    return {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(certificates / "broker.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(certificates / "ca.pem"),
        "ssl.principal.mapping.rules": "RULE:^CN=([^,]+).*$/$1/,DEFAULT",
    }


def _authorizer() -> dict[str, str]:
    properties = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": f"User:{ADMIN};User:{_INTERNAL_USER}",
        "allow.everyone.if.no.acl.found": "false",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "sasl.mechanism.controller.protocol": "PLAIN",
    }
    login = f'username="{_INTERNAL_USER}" password="{_INTERNAL_PASSWORD}" user_{_INTERNAL_USER}="{_INTERNAL_PASSWORD}"'
    for listener in ("internal", "controller"):
        properties |= _mechanism(listener, "PLAIN", "plain.PlainLoginModule", login)
    return properties


def _mechanism(listener: str, mechanism: str, module: str, options: str = "") -> dict[str, str]:
    login = _LOGIN.format(module=module, options=options).replace(" ;", ";")
    return {
        f"listener.name.{listener}.sasl.enabled.mechanisms": mechanism,
        f"listener.name.{listener}.{mechanism.lower()}.sasl.jaas.config": login,
    }


def _client_certificate_files(user: str, certificates: Path) -> dict[str, str]:
    return {
        "ssl.certificate.location": str(certificates / f"{user}.pem"),
        "ssl.key.location": str(certificates / f"{user}.key"),
    }
