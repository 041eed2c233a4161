# SPDX-License-Identifier: Apache-2.0
"""``monasca-common init``: create the databases and topics that the services of a configuration need."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from oslo_config import cfg

from monasca_common.cli import services
from monasca_common.cli.command import ChangeLister, MonascaCommand, add_execute, positive
from monasca_common.kafka import Admin, plugins
from monasca_common.kafka.config import connection_settings
from monasca_common.kafka.errors import ConfigurationError, TransportError
from monasca_common.runtime.logs import joined, shown_url
from monasca_common.storage import Storage, open_storage
from monasca_common.storage.errors import NotSupported, SchemaMismatch

T = TypeVar("T")

_PARTITIONS = 12
_BROKERS_DEFAULT = -1
_ASK_SECONDS = 30.0
_ALREADY_THERE = "TOPIC_ALREADY_EXISTS"


@dataclass(frozen=True, slots=True)
class NeededDatabase:
    """A database that services need. ``url``: its URL without secrets."""

    storage: Storage
    url: str
    services: tuple[str, ...]

    def plan(self, _: argparse.Namespace) -> dict[str, Any]:
        """Return the values to print; ``schema`` is the current or future revision. Raises `StorageError`."""
        facts = {"kind": "database", "name": self.url, "services": joined(self.services)}
        try:
            status = self.storage.status()
        except NotSupported:  # the driver has no schema, but `upgrade` creates a missing database
            return {**facts, "missing": True}
        if not status.usable and status.refusal:
            raise SchemaMismatch(status.refusal)
        schema = status.found if status.usable else status.wanted
        return {**facts, "schema": schema, "missing": not status.usable}

    def create(self, _: argparse.Namespace) -> None:
        self.storage.upgrade()


@dataclass(frozen=True, slots=True)
class NeededTopic:
    """A topic that services need, in the cluster of ``admin``. ``is_compacted``: whether it is compacted and has one
    partition."""

    admin: Admin
    name: str
    dead_letters: bool
    services: tuple[str, ...]
    is_compacted: bool = False

    def plan(self, wanted: argparse.Namespace) -> dict[str, Any]:
        """Return the values to print; ``partitions`` and ``replicas`` are the current or future numbers. Raises
        `TransportError`, and `ConfigurationError` if the brokers would refuse to create the topic.
        """
        facts = {"kind": "topic", "name": self.name, "services": joined(self.services)}
        if self.name in self.admin.topic_ids([self.name], timeout=_ASK_SECONDS):
            found = self.admin.describe_topic(self.name, timeout=_ASK_SECONDS)
            return {**facts, "partitions": found.partitions, "replicas": len(found.replicas[0]), "missing": False}
        try:
            self.admin.create_topic(self.name, **self._size(wanted), validate_only=True)
        except TransportError as error:
            if error.name != _ALREADY_THERE:  # otherwise, another process has just created it
                raise ConfigurationError(f"topic {self.name} cannot be created: {error}") from error
        return {**facts, "partitions": self._partitions(wanted), "replicas": wanted.replication_factor, "missing": True}

    def create(self, wanted: argparse.Namespace) -> None:
        try:
            config = {"cleanup.policy": "compact"} if self.is_compacted else None
            self.admin.create_topic(self.name, **self._size(wanted), config=config)
        except TransportError as error:
            if error.name != _ALREADY_THERE:
                raise

    def _partitions(self, wanted: argparse.Namespace) -> int:
        return 1 if self.is_compacted or self.dead_letters else int(wanted.partitions)

    def _size(self, wanted: argparse.Namespace) -> dict[str, Any]:
        copies: int = wanted.replication_factor or _BROKERS_DEFAULT
        return {"partitions": self._partitions(wanted), "replication_factor": copies}


class Init(MonascaCommand, ChangeLister):
    """Create the databases and topics that the services of the configuration need; without --execute, only show them.

    The topics are those that services read and write, and their dead-letter topics. Existing databases and topics are
    not changed, so the command can be repeated. All checks run before anything is created. For example, after a run
    without --execute:
    monasca-common init --service api --replication-factor 3 --execute
    """

    columns = ("kind", "name", "state", "partitions", "replicas", "schema", "services")

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        services.add_argument(parser)
        parser.add_argument(
            "--partitions",
            type=positive,
            default=_PARTITIONS,
            metavar="N",
            help="number of partitions of each new topic, which limits the number of consumers in a group; dead-letter "
            "topics have one (default: %(default)s)",
        )
        parser.add_argument(
            "--replication-factor",
            type=positive,
            metavar="N",
            help="number of replicas of each partition (default: the brokers' default.replication.factor)",
        )
        add_execute(parser)

    def change(self, parsed_args: argparse.Namespace, rows: list[Sequence[Any]]) -> None:
        confs = services.read_all(parsed_args)
        needed: list[NeededDatabase | NeededTopic] = [*needed_databases(confs), *needed_topics(confs)]
        plans = [(item, item.plan(parsed_args)) for item in needed]
        for item, plan in plans:
            if parsed_args.execute and plan["missing"]:
                item.create(parsed_args)
            state = "exists" if not plan["missing"] else "created" if parsed_args.execute else "missing"
            rows.append([*(plan.get(column) for column in ("kind", "name")), state, *map(plan.get, self.columns[3:])])
        if any(plan["missing"] for _, plan in plans):
            self.note_dry_run(parsed_args)


def needed_databases(confs: Mapping[str, cfg.ConfigOpts]) -> list[NeededDatabase]:
    """Return each database once, with the services that need it. Raises `ConfigurationError`."""
    found: dict[str, NeededDatabase] = {}
    for service, conf in confs.items():
        for settings in _needs(service, services.databases, conf):
            url = settings.connection
            known = found.get(url) or NeededDatabase(open_storage(settings), shown_url(url), ())
            found[url] = replace(known, services=(*known.services, service))
    return list(found.values())


def needed_topics(confs: Mapping[str, cfg.ConfigOpts]) -> list[NeededTopic]:
    """Return each topic once, with the services that need it; dead-letter topics last. Raises `ConfigurationError`."""
    admins: dict[str, Admin] = {}
    found: dict[tuple[str, str], NeededTopic] = {}
    for service, conf in confs.items():
        for each in _needs(service, services.topics, conf):
            servers = connection_settings(conf, each.group).bootstrap_servers
            admin = admins.setdefault(servers, plugins.load_admin(conf, each.group))
            known = found.get((servers, each.name))
            known = known or NeededTopic(admin, each.name, each.dead_letters, (), each.is_compacted)
            named = tuple(dict.fromkeys((*known.services, service)))
            found[servers, each.name] = replace(
                known, services=named, dead_letters=known.dead_letters and each.dead_letters
            )
    return sorted(found.values(), key=lambda each: each.dead_letters)


def _needs(service: str, of: Callable[[str, cfg.ConfigOpts], list[T]], conf: cfg.ConfigOpts) -> list[T]:
    """Return the databases or topics that a service needs. Errors name the service."""
    try:
        return of(service, conf)
    except ConfigurationError as error:
        raise ConfigurationError(
            f"{service}: {error}; or omit this service by naming the others with --service"
        ) from error
