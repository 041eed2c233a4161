# SPDX-License-Identifier: Apache-2.0
"""Raises a clear error for services that open a client with the arguments of monasca-common 3, whose class names are
the same."""

from __future__ import annotations

from typing import Self

from monasca_common.kafka.errors import MisuseError

_OLD_NAMES = frozenset({"kafka_url", "url", "zookeeper_path", "zookeeper_url"})


class RefusesOldArguments:
    """Base class of clients that take settings. Raises `MisuseError` for addresses, the arguments of version 3."""

    def __new__(cls, *arguments: object, **named: object) -> Self:
        if not _OLD_NAMES.isdisjoint(named) or (arguments and isinstance(arguments[0], str | bytes | list | tuple)):
            raise MisuseError(
                f"{cls.__name__}: the client of monasca-common 3, which was opened with addresses, was removed: call "
                "monasca_common.kafka.client_factory, and read doc/source/user/migration.rst"
            )
        return super().__new__(cls)
