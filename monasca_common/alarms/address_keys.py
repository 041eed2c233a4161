# SPDX-License-Identifier: Apache-2.0
"""Encrypts the addresses of notification methods in the database, because they can contain tokens. The first key
encrypts, and all keys decrypt. Each row stores the name of its key; a row without a key name contains plain text.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import sqlalchemy as sa
from oslo_config import cfg

from monasca_common.alarms.database import AlarmsDatabase
from monasca_common.alarms.settings import ALARMS, database_settings
from monasca_common.kafka.config import GroupReader
from monasca_common.storage.errors import StorageUnavailable
from monasca_common.storage.sql import tables

if TYPE_CHECKING:
    from cryptography.fernet import Fernet

LOG = logging.getLogger(__name__)

_METHOD = tables.notification_method
_ID_BYTES = 4


class AddressUnreadable(StorageUnavailable):
    """An address was encrypted with a key that this process does not have. The address can be read once the key is
    added."""

    def __init__(self, key_id: str) -> None:
        super().__init__(
            f"an address of a notification method was encrypted with the key {key_id}, which is not among address_keys "
            "in group [alarms]: add it there"
        )


class AddressKeys:
    """Encrypts and decrypts addresses; without keys, addresses are plain text. Thread-safe."""

    def __init__(self, keys: Sequence[str] = ()) -> None:
        """Raises `ValueError` for an invalid Fernet key. The error text does not contain the key."""
        self._fernets = {key_id(key): _fernet(key) for key in keys}
        self.first = next(iter(self._fernets), None)

    def seal(self, address: str) -> dict[str, str | None]:
        """Encrypt an address with the first key, and return the columns of its row."""
        if self.first is None:
            return {"address": address, "address_key": None}
        token = self._fernets[self.first].encrypt(address.encode())
        return {"address": token.decode(), "address_key": self.first}

    def open(self, stored: str, key: str | None) -> str:
        """Return the address of a row. Raises `AddressUnreadable`."""
        if key is None:
            return stored
        from cryptography.fernet import InvalidToken

        try:
            return self._fernets[key].decrypt(stored.encode()).decode()
        except (KeyError, InvalidToken):
            raise AddressUnreadable(key) from None


PLAIN = AddressKeys()


def key_id(key: str) -> str:
    """Return the name of a key. The name does not reveal the key."""
    return hashlib.blake2b(key.strip().encode(), digest_size=_ID_BYTES).hexdigest()


def _fernet(key: str) -> Fernet:
    from cryptography.fernet import Fernet

    try:
        return Fernet(key.strip())
    except ValueError:
        raise ValueError(f"the key {key_id(key)} is not 32 bytes in URL-safe base64") from None


def address_keys(conf: cfg.ConfigOpts) -> AddressKeys:
    """Return the keys of ``[alarms] address_keys``, and log a warning if there are none.

    Raises `ConfigurationError`, whose text does not contain the keys.
    """
    keys = read_keys(conf)
    if keys.first is None:
        LOG.warning(
            "address_keys in group [alarms] is not set: addresses of notification methods, which can contain tokens, "
            "are stored as plain text"
        )
    return keys


def read_keys(conf: cfg.ConfigOpts) -> AddressKeys:
    """Return the same keys as `address_keys`, but without a warning."""
    read = GroupReader(conf, ALARMS)
    try:
        return AddressKeys([key for key in read["address_keys"] or () if key.strip()])
    except ValueError as error:
        refused = str(error)
    raise read.error("address_keys", f"is refused: {refused}; create a key with Fernet.generate_key()")


@dataclass(frozen=True, slots=True)
class Rotated:
    """The result of `rotate`. ``changed``: the number of rows whose address was encrypted with the first key.
    ``unreadable``: the number of rows for each missing key, by key name."""

    changed: int
    unreadable: Mapping[str, int]


def rotate(database: AlarmsDatabase, keys: AddressKeys) -> Rotated:
    """Encrypt each address with the first key, in one transaction. The call can be repeated, and is safe while services
    run."""
    other = sa.or_(_METHOD.c.address_key.is_(None), _METHOD.c.address_key != keys.first)
    statement = sa.select(_METHOD.c.id, _METHOD.c.address, _METHOD.c.address_key).where(other).with_for_update()

    def work(connection: sa.Connection) -> Rotated:
        changed, unreadable = 0, Counter[str]()
        for row in connection.execute(statement).all():
            try:
                columns = keys.seal(keys.open(row.address, row.address_key))
            except AddressUnreadable:
                unreadable[row.address_key] += 1
            else:
                connection.execute(_METHOD.update().where(_METHOD.c.id == row.id).values(columns))
                changed += 1
        return Rotated(changed, unreadable)

    return database.write(work)


def rotate_configured(conf: cfg.ConfigOpts) -> Rotated | None:
    """Call `rotate` with the keys and the database of ``conf``, or return ``None`` if there are no keys. Raises
    `ConfigurationError`, `StorageError`.
    """
    settings, keys = database_settings(conf), read_keys(conf)
    if keys.first is None:
        return None
    with contextlib.closing(AlarmsDatabase(settings)) as database:
        return rotate(database, keys)
