# SPDX-License-Identifier: Apache-2.0
"""Notification methods (the receivers of notifications): their rules and their table."""

from __future__ import annotations

import importlib.metadata
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from types import MappingProxyType
from urllib.parse import urlsplit

import sqlalchemy as sa

from monasca_common.alarms.address_keys import PLAIN, AddressKeys, AddressUnreadable
from monasca_common.alarms.database import AlarmsDatabase, Row, Slice, Sort, delete_one, new_id, of_tenant, only_row
from monasca_common.alarms.errors import refuse
from monasca_common.models.limits import TextRule
from monasca_common.storage.sql import tables

LOG = logging.getLogger(__name__)

#: The group of entry points: one for each type, named after the type in lower case.
NOTIFIERS = "monasca_common.notifiers"
BUILT_IN = ("EMAIL", "JIRA", "PAGERDUTY", "SLACK", "WEBHOOK")
NAME = TextRule(most=250)
ADDRESS = TextRule(most=512)
PERIODS = {"WEBHOOK": (0, 60)}  # seconds; 0: no repeats
SORTS = ("id", "name", "type", "address", "created_at", "updated_at")

_WHAT = "notification method"
_METHOD, _ACTION = tables.notification_method, tables.alarm_action
_SELECT = sa.select(*(_METHOD.c[name] for name in ("id", "name", "type", "address", "address_key", "period")))
_NOTIFIED = (
    _SELECT.join(_ACTION, _ACTION.c.method_id == _METHOD.c.id)
    .where(_ACTION.c.definition_id == sa.bindparam("of_definition"), _ACTION.c.state == sa.bindparam("entered"))
    .where(_METHOD.c.tenant == sa.bindparam("of_tenant"))
    .order_by(_ACTION.c.position)
)
#: One mailbox in ASCII, without characters that begin another address, a comment or a header.
EMAIL_ADDRESS = re.compile(r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]+@[A-Za-z0-9.-]+")
_HOST_NAME = re.compile(r"[A-Za-z0-9._-]+|[0-9A-Fa-f:.]+")  # as in notification.addresses, which loads no SQLAlchemy
_HOST = re.compile(r"https?://[^/?#@\s]+(?:/|(?=[?#])|$)")
_WITH_HOST = ("JIRA", "SLACK", "WEBHOOK")
_URL = re.compile(r"[!-\[\]-~]+")  # visible ASCII without backslashes, which URL parsers interpret differently


@dataclass(frozen=True, slots=True)
class NotificationMethod:
    """``type``: one of `types`. ``period``: seconds between repeats of a notification; 0: no repeats. ``id``: empty
    until the method is stored. ``unreadable``: why the address cannot be decrypted and is empty."""

    name: str
    type: str
    address: str = field(repr=False)
    period: int = 0
    id: str = ""
    unreadable: AddressUnreadable | None = None

    @property
    def masked_address(self) -> str:
        """Return the part of the address that may be shown to readers outside the method's tenant."""
        host = _HOST.match(self.address)
        if self.type == "EMAIL":
            return f"{self.address[:1]}…@{self.address.rpartition('@')[2]}"
        return f"{host[0]}…" if host and self.type in _WITH_HOST else "…"


#: Returns the fault of an address, or ``None``.
AddressFault = Callable[[str], str | None]


@cache
def plugins() -> Mapping[str, AddressFault]:
    """Return the types of additional notifiers, with the functions that check the form of their addresses.

    Notifiers that cannot be loaded are omitted.
    """
    found: dict[str, AddressFault] = {}
    for each in importlib.metadata.entry_points(group=NOTIFIERS):
        name = each.name.upper()
        if name in BUILT_IN:
            continue
        try:
            found[name] = getattr(each.load(), "address_fault", lambda _: None)
        except Exception as error:
            # A missing package, such as that of an optional notifier, is normal.
            level = logging.DEBUG if isinstance(error, ModuleNotFoundError) else logging.WARNING
            LOG.log(level, "methods of type %s are unavailable: the notifier cannot be loaded: %s", name, error)
    return MappingProxyType(found)


def types() -> tuple[str, ...]:
    """Return the types of this package and of installed notifiers, sorted."""
    return tuple(sorted({*BUILT_IN, *plugins()}))


def faults(method: NotificationMethod) -> Iterator[tuple[str, str]]:
    """Yield each broken rule with its field. Addresses are resolved only when a notification is sent."""
    yield from (("name", fault) for fault in NAME.faults(method.name))
    wrong = list(ADDRESS.faults(method.address))
    yield from (("address", fault) for fault in wrong)
    if method.type not in types():
        yield "type", f"is not one of {', '.join(types())}"
        return
    if not wrong and method.type in plugins() and (fault := plugins()[method.type](method.address)) is not None:
        yield "address", fault
    if method.type == "EMAIL" and not wrong and not EMAIL_ADDRESS.fullmatch(method.address):
        yield "address", "is not an e-mail address in ASCII, such as someone@example.org"
    if method.type == "WEBHOOK" and not wrong and not _is_http(method.address):
        yield "address", "is not an HTTP or HTTPS URL in ASCII without a user, such as https://example.org/hook"
    periods = PERIODS.get(method.type, (0,))
    if method.period not in periods:
        yield "period", f"must be {' or '.join(map(str, periods))} for a method of this type"


def _is_http(address: str) -> bool:
    try:
        url = urlsplit(address)
        is_valid = url.scheme in ("http", "https") and "@" not in url.netloc and url.port != 0
    except ValueError:
        return False
    return is_valid and _HOST_NAME.fullmatch(url.hostname or "") is not None and _URL.fullmatch(address) is not None


class NotificationMethods:
    """The methods in the database. Each call accesses only those of its tenant."""

    def __init__(self, database: AlarmsDatabase, keys: AddressKeys = PLAIN) -> None:
        self._database = database
        self._keys = keys

    def found(self, tenant: str, sorts: Sequence[Sort], part: Slice) -> list[NotificationMethod]:
        """Return the methods of a tenant. Raises `AddressUnreadable`, as do `get` and `change`."""
        # Sort in Python, because the database cannot order encrypted addresses.
        times = (_METHOD.c.created, _METHOD.c.updated)
        rows = self._database.rows(_SELECT.add_columns(*times).where(_METHOD.c.tenant == tenant).order_by(_METHOD.c.id))
        pairs = [(row, self._opened(row)) for row in rows]
        for sort in reversed(sorts):
            name = sort.field.removesuffix("_at")
            pairs.sort(
                key=lambda pair: pair[1].address if name == "address" else getattr(pair[0], name),
                reverse=sort.descending,
            )
        return [method for _, method in pairs[part.offset : part.offset + part.limit]]

    def get(self, tenant: str, method_id: str) -> NotificationMethod:
        """Raises `UnknownId`."""
        return self._database.read(lambda connection: self._one(connection, tenant, method_id))

    def notified(self, tenant: str, definition_id: str, state: str) -> list[NotificationMethod]:
        """Return the methods of the definition's actions for ``state``, in order.

        Methods whose address cannot be decrypted are included, so that the other methods are notified.
        """
        values = {"of_tenant": tenant, "of_definition": definition_id, "entered": state}
        return list(map(self._as_found, self._database.rows(_NOTIFIED, values)))

    def get_or_unreadable(self, tenant: str, method_id: str) -> NotificationMethod:
        """Return a method like `get`, but without an error if its address cannot be decrypted. Raises `UnknownId`."""
        return self._database.read(lambda connection: self._as_found(_row_of(connection, tenant, method_id)))

    def create(self, tenant: str, method: NotificationMethod, now_ms: int) -> NotificationMethod:
        """Raises `BrokenRules`, `NameTaken`."""
        refuse(faults(method))
        created = replace(method, id=new_id())
        row = {**self._row(created), "id": created.id, "tenant": tenant, "created": now_ms, "updated": now_ms}

        def work(connection: sa.Connection) -> NotificationMethod:
            connection.execute(_METHOD.insert().values(row))
            return created

        return self._database.write(work, named=_WHAT)

    def change(
        self, tenant: str, method_id: str, changed: Callable[[NotificationMethod], NotificationMethod], now_ms: int
    ) -> NotificationMethod:
        """Change a method with ``changed``, and return it. Raises `UnknownId`, `BrokenRules`, `NameTaken`."""

        def work(connection: sa.Connection) -> NotificationMethod:
            after = replace(changed(self._one(connection, tenant, method_id, lock=True)), id=method_id)
            refuse(faults(after))
            statement = _METHOD.update().where(*of_tenant(_METHOD, tenant, method_id))
            connection.execute(statement.values(self._row(after) | {"updated": now_ms}))
            return after

        return self._database.write(work, named=_WHAT)

    def delete(self, tenant: str, method_id: str) -> None:
        """Delete a method and the actions that name it. Raises `UnknownId`."""

        def work(connection: sa.Connection) -> None:
            delete_one(connection, _METHOD, tenant, method_id, _WHAT)
            connection.execute(_ACTION.delete().where(_ACTION.c.method_id == method_id))

        self._database.write(work)

    def _opened(self, row: Row) -> NotificationMethod:
        address = self._keys.open(row.address, row.address_key)
        return NotificationMethod(row.name, row.type, address, row.period, row.id)

    def _as_found(self, row: Row) -> NotificationMethod:
        try:
            return self._opened(row)
        except AddressUnreadable as error:
            return NotificationMethod(row.name, row.type, "", row.period, row.id, unreadable=error)

    def _one(self, connection: sa.Connection, tenant: str, method_id: str, *, lock: bool = False) -> NotificationMethod:
        return self._opened(_row_of(connection, tenant, method_id, lock=lock))

    def _row(self, method: NotificationMethod) -> dict[str, str | int | None]:
        sealed = self._keys.seal(method.address)
        return {"name": method.name, "type": method.type, "period": method.period, **sealed}


def _row_of(connection: sa.Connection, tenant: str, method_id: str, *, lock: bool = False) -> Row:
    statement = _SELECT.where(*of_tenant(_METHOD, tenant, method_id))
    return only_row(connection.execute(statement.with_for_update() if lock else statement), _WHAT, method_id)
