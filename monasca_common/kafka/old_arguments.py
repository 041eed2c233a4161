# SPDX-License-Identifier: Apache-2.0
"""A clear refusal for services that still open the clients of monasca-common 3, whose names ours have."""

from __future__ import annotations

from typing import Self

from monasca_common.kafka.errors import MisuseError

_OLD_NAMES = frozenset({"kafka_url", "url", "zookeeper_path", "zookeeper_url"})


class RefusesOldArguments:
    """Base of a class that takes settings, and whose namesake took addresses. Raises `MisuseError` for those."""

    def __new__(cls, *arguments: object, **named: object) -> Self:
        if not _OLD_NAMES.isdisjoint(named) or (arguments and isinstance(arguments[0], str | bytes | list | tuple)):
            raise MisuseError(
                f"{cls.__name__}: the client of monasca-common 3, which was opened with addresses, is gone: call "
                "monasca_common.kafka.client_factory, and read doc/source/user/migration.rst"
            )
        return super().__new__(cls)
