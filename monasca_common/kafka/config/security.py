# SPDX-License-Identifier: Apache-2.0
"""Checks the options for TLS and credentials, and converts them to librdkafka's options."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from monasca_common.kafka.declaration import options_of
from monasca_common.kafka.errors import ConfigurationError
from monasca_common.kafka.settings import SecuritySettings

_RAW_NAMES = {each.name: each.librdkafka[0] for each in options_of(SecuritySettings) if each.librdkafka}
_CREDENTIALS = ("sasl_mechanism", "sasl_username", "sasl_password")
_TLS_FILES = ("tls_ca_file", "tls_certificate_file", "tls_key_file")


def checked(options: SecuritySettings, *, group: str) -> Mapping[str, str]:
    """Return librdkafka's names and values. ``group``: the group of the options, for error messages.

    Raises `ConfigurationError`, which quotes no secret.
    """
    mechanism = options.sasl_mechanism and options.sasl_mechanism.upper()
    options = replace(options, security_protocol=options.security_protocol.upper(), sasl_mechanism=mechanism)
    _check_sasl(options, group)
    _check_tls(options, group)
    given = {raw: getattr(options, name) for name, raw in _RAW_NAMES.items() if getattr(options, name)}
    return MappingProxyType(given | {"security.protocol": options.security_protocol.lower()})


def _check_sasl(options: SecuritySettings, group: str) -> None:
    used = options.security_protocol.startswith("SASL_")
    for name in _CREDENTIALS:
        if used and not getattr(options, name):
            raise _error(group, name, f"is needed by security_protocol={options.security_protocol}", "set it")
        if not used and getattr(options, name):
            raise _error(
                group, name, f"has no effect with security_protocol={options.security_protocol}", "use SASL_SSL"
            )
    if options.security_protocol == "SASL_PLAINTEXT" and not options.allow_insecure_credentials:
        raise _error(
            group,
            "security_protocol",
            "is SASL_PLAINTEXT, which sends credentials over connections without TLS",
            "use SASL_SSL, or set allow_insecure_credentials=true where the network is trusted",
        )


def _check_tls(options: SecuritySettings, group: str) -> None:
    for name in _TLS_FILES:
        if getattr(options, name) and not options.security_protocol.endswith("SSL"):
            raise _error(
                group, name, f"has no effect with security_protocol={options.security_protocol}", "use SSL or SASL_SSL"
            )
    check_tls_files(options, group)


def check_tls_files(options: Any, group: str) -> None:
    """Check the files that these settings name. Raises `ConfigurationError` if one cannot be read, or if only one of
    certificate and key is set."""
    for name in _TLS_FILES:
        path = getattr(options, name)
        if path and not os.path.isfile(path):
            raise _error(group, name, f"names a file that does not exist: {path}", "correct the path")
        if path and not os.access(path, os.R_OK):
            raise _error(group, name, f"names a file that this user cannot read: {path}", "change its permissions")
    if bool(options.tls_certificate_file) != bool(options.tls_key_file):
        lacking = "tls_key_file" if options.tls_certificate_file else "tls_certificate_file"
        raise _error(group, lacking, "is missing: a certificate needs its key, and vice versa", "set both or neither")


def _error(group: str, option: str, rule: str, remedy: str) -> ConfigurationError:
    return ConfigurationError(f"{option} in group [{group}] {rule}: {remedy}")
