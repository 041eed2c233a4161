# SPDX-License-Identifier: Apache-2.0
"""The options on TLS and credentials, checked, as librdkafka calls them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from monasca_common.kafka.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class SecurityOptions:
    """What is configured, unchecked. ``group`` is where, for messages of errors."""

    group: str
    security_protocol: str
    allow_insecure_credentials: bool
    sasl_mechanism: str | None
    sasl_username: str | None = field(repr=False)
    sasl_password: str | None = field(repr=False)
    tls_ca_file: str | None
    tls_certificate_file: str | None
    tls_key_file: str | None
    tls_key_password: str | None = field(repr=False)

    def checked(self) -> Mapping[str, str]:
        """librdkafka's names and values. Raises `ConfigurationError`, which quotes no secret."""
        settings = {"security.protocol": self.security_protocol.lower(), **self._sasl(), **self._tls()}
        return MappingProxyType(settings)

    def _sasl(self) -> dict[str, str]:
        credentials = {
            "sasl_mechanism": self.sasl_mechanism,
            "sasl_username": self.sasl_username,
            "sasl_password": self.sasl_password,
        }
        given = {name: value for name, value in credentials.items() if value}
        if not self.security_protocol.startswith("SASL_"):
            for name in given:
                raise self._error(
                    name, f"has no effect with security_protocol={self.security_protocol}", "use SASL_SSL"
                )
            return {}
        for name in credentials.keys() - given.keys():
            raise self._error(name, f"is needed by security_protocol={self.security_protocol}", "set it")
        if self.security_protocol == "SASL_PLAINTEXT" and not self.allow_insecure_credentials:
            raise self._error(
                "security_protocol",
                "is SASL_PLAINTEXT, which sends credentials over connections without TLS",
                "use SASL_SSL, or set allow_insecure_credentials=true where the network is trusted",
            )
        return {name.replace("_", "."): value for name, value in given.items()}

    def _tls(self) -> dict[str, str]:
        files = {
            "tls_ca_file": ("ssl.ca.location", self.tls_ca_file),
            "tls_certificate_file": ("ssl.certificate.location", self.tls_certificate_file),
            "tls_key_file": ("ssl.key.location", self.tls_key_file),
        }
        settings = {}
        for option, (name, path) in files.items():
            if path:
                self._check_file(option, path)
                settings[name] = path
        if bool(self.tls_certificate_file) != bool(self.tls_key_file):
            lacking = "tls_key_file" if self.tls_certificate_file else "tls_certificate_file"
            raise self._error(lacking, "is missing: a certificate and its key go together", "set both or neither")
        if self.tls_key_password:
            settings["ssl.key.password"] = self.tls_key_password
        return settings

    def _check_file(self, option: str, path: str) -> None:
        if not self.security_protocol.endswith("SSL"):
            raise self._error(
                option, f"has no effect with security_protocol={self.security_protocol}", "use SSL or SASL_SSL"
            )
        if not os.path.isfile(path):
            raise self._error(option, f"names a file that does not exist: {path}", "correct the path")
        if not os.access(path, os.R_OK):
            raise self._error(option, f"names a file that this user may not read: {path}", "change its permissions")

    def _error(self, option: str, rule: str, remedy: str) -> ConfigurationError:
        return ConfigurationError(f"{option} in group [{self.group}] {rule}: {remedy}")
