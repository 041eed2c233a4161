# SPDX-License-Identifier: Apache-2.0
"""Checks the options for TLS and credentials, and translates them to librdkafka's."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from monasca_common.kafka.errors import ConfigurationError
from monasca_common.kafka.settings import SecuritySettings


def checked(options: SecuritySettings, *, group: str) -> Mapping[str, str]:
    """librdkafka's names and values. ``group``: the group of the options, for error messages.

    Raises `ConfigurationError`, which quotes no secret.
    """
    options = replace(options, security_protocol=options.security_protocol.upper())
    settings = {
        "security.protocol": options.security_protocol.lower(),
        **_sasl(options, group),
        **_tls(options, group),
    }
    return MappingProxyType(settings)


def _sasl(options: SecuritySettings, group: str) -> dict[str, str]:
    credentials = {
        "sasl_mechanism": options.sasl_mechanism,
        "sasl_username": options.sasl_username,
        "sasl_password": options.sasl_password,
    }
    given = {name: value for name, value in credentials.items() if value}
    if not options.security_protocol.startswith("SASL_"):
        for name in given:
            raise _error(
                group, name, f"has no effect with security_protocol={options.security_protocol}", "use SASL_SSL"
            )
        return {}
    for name in credentials.keys() - given.keys():
        raise _error(group, name, f"is needed by security_protocol={options.security_protocol}", "set it")
    if options.security_protocol == "SASL_PLAINTEXT" and not options.allow_insecure_credentials:
        raise _error(
            group,
            "security_protocol",
            "is SASL_PLAINTEXT, which sends credentials over connections without TLS",
            "use SASL_SSL, or set allow_insecure_credentials=true where the network is trusted",
        )
    return {name.replace("_", "."): value for name, value in given.items()}


def _tls(options: SecuritySettings, group: str) -> dict[str, str]:
    files = {
        "tls_ca_file": ("ssl.ca.location", options.tls_ca_file),
        "tls_certificate_file": ("ssl.certificate.location", options.tls_certificate_file),
        "tls_key_file": ("ssl.key.location", options.tls_key_file),
    }
    settings = {}
    for option, (name, path) in files.items():
        if path:
            _check_file(options, group, option, path)
            settings[name] = path
    if bool(options.tls_certificate_file) != bool(options.tls_key_file):
        lacking = "tls_key_file" if options.tls_certificate_file else "tls_certificate_file"
        raise _error(group, lacking, "is missing: a certificate and its key go together", "set both or neither")
    if options.tls_key_password:
        settings["ssl.key.password"] = options.tls_key_password
    return settings


def _check_file(options: SecuritySettings, group: str, option: str, path: str) -> None:
    if not options.security_protocol.endswith("SSL"):
        raise _error(
            group, option, f"has no effect with security_protocol={options.security_protocol}", "use SSL or SASL_SSL"
        )
    if not os.path.isfile(path):
        raise _error(group, option, f"names a file that does not exist: {path}", "correct the path")
    if not os.access(path, os.R_OK):
        raise _error(group, option, f"names a file that this user may not read: {path}", "change its permissions")


def _error(group: str, option: str, rule: str, remedy: str) -> ConfigurationError:
    return ConfigurationError(f"{option} in group [{group}] {rule}: {remedy}")
