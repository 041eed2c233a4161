# SPDX-License-Identifier: Apache-2.0
"""``monasca-common config check``: find errors in configuration files, without opening connections."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import importlib.metadata
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from cliff.lister import Lister
from oslo_config import cfg

from monasca_common.alarms.settings import NoAlarmsDatabase
from monasca_common.api.settings import list_opts as api_options
from monasca_common.cli import configuration, services
from monasca_common.cli.command import MonascaCommand
from monasca_common.kafka.config import KAFKA_GROUP, group_of, producer_settings
from monasca_common.kafka.errors import MessagingError
from monasca_common.kafka.extras import DISTRIBUTION, missing_distributions, remedy
from monasca_common.kafka.plugins import producing_driver
from monasca_common.notification.settings import (
    email_settings,
    http_settings,
    jira_settings,
    notification_settings,
    webhook_settings,
)
from monasca_common.operations.settings import lag_settings, start_check_settings
from monasca_common.pipeline.archive.settings import archive_settings, has_archive
from monasca_common.pipeline.evaluate.settings import EVALUATE_GROUP, evaluate_settings
from monasca_common.pipeline.replay.settings import REPLAY_GROUP, replay_settings
from monasca_common.pipeline.settings import aggregate_settings, backfill_settings, spark_settings
from monasca_common.storage import StorageSettings, load_storage, open_storage
from monasca_common.storage.errors import StorageError
from monasca_common.storage.settings import DATABASE, STORAGE, dialect_of, has_database

LOG = logging.getLogger(__name__)

Check = Callable[[cfg.ConfigOpts], object]

_EXTRAS = {
    "api": "api",
    "lag": "monitoring",
    "notification": "notification",
    "persister": "persister",
    "pipeline": "spark",
    "sink": "persister",
}
_MISSPELT = 0.85  # the similarity of two names, from 0 to 1
_LOGGERS = ("monasca_common", "oslo_config")
# Option groups of libraries, which services also read.
_FOREIGN = frozenset({"DEFAULT", "cors", "keystone_authtoken", "oslo_middleware", "oslo_policy"})


@dataclass(frozen=True, slots=True)
class Findings:
    """The findings about a service. ``faults``: errors that prevent a start. ``notes``: warnings. ``driver``: the
    producer's driver, if the options for Kafka are complete."""

    faults: tuple[str, ...]
    notes: tuple[str, ...]
    driver: str = ""


class ConfigCheck(MonascaCommand, Lister):
    """Show errors and warnings in the configuration files of each service, without opening connections.

    FAULT: the service would not start. NOTE: the service would log this warning. The exit status is 1 if there is a
    FAULT. For example:
    monasca-common config check --config-file /etc/monasca/persister.conf --service persister
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        services.add_argument(parser)

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Sequence[tuple[str, str, str]]]:
        rows = []
        for service in services.chosen(parsed_args):
            found = check_service(service, parsed_args.config_file)
            driver = f"the producer uses the driver {found.driver}"
            rows += [(service, "FAULT", text) for text in found.faults] or [(service, "OK", driver)]
            rows += [(service, "NOTE", text) for text in found.notes]
        self._status = int(any(severity == "FAULT" for _, severity, _ in rows))
        return ("service", "severity", "finding"), rows


def check_service(service: str, files: Sequence[str]) -> Findings:
    """Run all checks of a service twice: with the given configuration, and with all required options set, so that a
    missing option does not hide other errors."""
    extra = _EXTRAS[service]
    missing = [f"{name} is not installed: install {DISTRIBUTION}[{extra}]" for name in missing_distributions(extra)]
    faults, notes = dict.fromkeys(missing), dict[str, None]()
    drivers: list[str] = []

    def check_producer(conf: cfg.ConfigOpts) -> None:
        drivers.append(producing_driver(replace(producer_settings(conf), transactional_id=None)))  # as services do

    checks: Sequence[Check] = (check_producer, _storage, *_CHECKS[service], _groups)
    for check in checks:
        for completed in (False, True):
            try:
                with _warnings() as said:
                    conf = services.read_service(service, files)
                    if completed:
                        _complete(conf)
                    check(conf)
            except ImportError as error:
                faults[remedy(error, extra)] = None
            except (MessagingError, StorageError) as error:
                faults[str(error)] = None
            notes |= dict.fromkeys(said)
    return Findings(tuple(faults), tuple(notes), drivers[-1] if drivers else "unknown")


def _complete(conf: cfg.ConfigOpts) -> None:
    """Set the required options that are missing."""
    for group in (group_of(KAFKA_GROUP), STORAGE, DATABASE):
        group.register(conf)
    if not conf.kafka.bootstrap_servers:
        conf.set_override("bootstrap_servers", ["nowhere:9092"], group=KAFKA_GROUP)
    if not has_database(conf):
        driver = conf.storage.driver
        url = "sqlite:////unused" if driver == "sqlite" else f"{driver}://unused@unused/unused"
        conf.set_override("connection", url, group=DATABASE.name)


def _storage(conf: cfg.ConfigOpts) -> None:
    if has_database(conf):
        load_storage(conf)


def _authentication(conf: cfg.ConfigOpts) -> None:
    from monasca_common.api import auth  # requires an extra

    for group, options in api_options():
        conf.register_opts(options, group=group)
    if conf.api.auth_strategy == "keystone":
        auth.check(conf)


def _api(conf: cfg.ConfigOpts) -> None:
    from monasca_common.api.service import check  # requires an extra

    check(conf)


def _address_keys(conf: cfg.ConfigOpts) -> None:
    from monasca_common.alarms.address_keys import address_keys  # requires an extra

    address_keys(conf)


def _persister(conf: cfg.ConfigOpts) -> None:
    from monasca_common.persister.service import worker_groups  # requires an extra
    from monasca_common.persister.settings import persister_settings

    settings = persister_settings(conf)
    worker_groups(settings, open_storage(settings.storage))


def _sink(conf: cfg.ConfigOpts) -> None:
    from monasca_common.sink.service import decoders, open_sink_storage  # needs an extra
    from monasca_common.sink.settings import sink_settings

    settings = sink_settings(conf)
    open_sink_storage(settings)
    decoders(settings.tables, conf)


def _aggregate(conf: cfg.ConfigOpts) -> None:
    stream = aggregate_settings(conf).stream
    open_storage(StorageSettings(dialect_of(stream.connection), stream.connection))


def _archive(conf: cfg.ConfigOpts) -> None:
    if has_archive(conf):
        archive_settings(conf)
    if REPLAY_GROUP in conf.list_all_sections():
        replay_settings(conf)


def _evaluate(conf: cfg.ConfigOpts) -> None:
    """Check the evaluator. A missing alarms database is permitted, unless the evaluator's group is in a file."""
    try:
        evaluate_settings(conf)
    except NoAlarmsDatabase:
        if EVALUATE_GROUP in conf.list_all_sections():
            raise


def _groups(conf: cfg.ConfigOpts) -> None:
    """Log warnings about groups that no service reads. They are not errors, because other programs can read them."""
    notifiers = {f"{each.name}_notifier" for each in importlib.metadata.entry_points(group="monasca_common.notifiers")}
    known = {group for group, _ in configuration.own_options()} | notifiers | _FOREIGN
    for group in sorted(set(conf.list_all_sections()) - known):
        if group.startswith(KAFKA_GROUP):  # services that read these groups log warnings about misspelt names
            continue
        close = difflib.get_close_matches(group, sorted(known), n=1, cutoff=_MISSPELT)
        hint = f": did you mean [{close[0]}]?" if close else ""
        LOG.warning("no service reads the group [%s]%s", group, hint)


_CHECKS: Mapping[str, Sequence[Check]] = MappingProxyType(
    {
        "api": (_authentication, _api, start_check_settings),
        "lag": (lag_settings, start_check_settings),
        "notification": (
            *(notification_settings, _address_keys, http_settings, webhook_settings),
            *(email_settings, jira_settings, start_check_settings),
        ),
        "persister": (_persister, start_check_settings),
        "pipeline": (_aggregate, backfill_settings, spark_settings, _archive, _evaluate, start_check_settings),
        "sink": (_sink, start_check_settings),
    }
)


@contextlib.contextmanager
def _warnings() -> Iterator[list[str]]:
    """Collect the warnings and errors that are logged within the block."""
    said: list[str] = []

    class WarningsHandler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())

    handler = WarningsHandler(logging.WARNING)
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    for logger in loggers:
        logger.addHandler(handler)
        logger.propagate = False
    try:
        yield said
    finally:
        for logger in loggers:
            logger.removeHandler(handler)
            logger.propagate = True
