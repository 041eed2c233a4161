# SPDX-License-Identifier: Apache-2.0
"""The options of ``[persister]``, and what it adds to the groups of the consumers that it runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from oslo_config import cfg

from monasca_common.kafka import options as kafka_options
from monasca_common.kafka.config import config_file, configuration
from monasca_common.kafka.errors import ConfigurationError
from monasca_common.kafka.options import KAFKA_GROUP, inherited
from monasca_common.persister.settings import GroupSettings, PersisterSettings
from monasca_common.storage.base import Kind
from monasca_common.storage.options import storage_settings

PERSISTER_GROUP = "persister"

# The option group of each kind, and whether it is read unless told otherwise: as in the persister of old.
_CONSUMERS = {
    "kafka_metrics": (Kind.METRICS, True),
    "kafka_alarm_history": (Kind.ALARM_HISTORY, True),
    "kafka_logs": (Kind.LOGS, False),
    "kafka_events": (Kind.EVENTS, False),
}

# Other defaults than [kafka] has for everybody. A transaction costs the database the same for 50 rows and for 20,000
# (SQLite writes every page that has one of them); a stop leaves room, within the 10 seconds that are promised, for
# leaving the group and for the parent process.
_DEFAULTS_OF_KAFKA = {
    "batch_size": 20_000,
    "buffer_bytes": 128 * 1024 * 1024,  # two batches at work and the next ones, with 500 bytes of overhead a message
    "max_wait_time_seconds": 0.1,
    "stop_timeout_seconds": 5.0,
}
# A worker that was killed is replaced at once, but its partitions wait until its session is over.
_SESSION_TIMEOUT_SECONDS = 10.0

PERSISTER_OPTIONS = [
    cfg.StrOpt(
        "status_host",
        default="127.0.0.1",
        help="The address at which /healthcheck and /metrics answer; 0.0.0.0 for every one of this machine. "
        "Neither asks who is asking.",
    ),
    cfg.PortOpt(
        "status_port",
        help="The port at which /healthcheck (JSON) and /metrics (Prometheus) answer. Unset: nowhere.",
    ),
    cfg.IntOpt(
        "max_consecutive_dead_letters",
        default=10_000,
        min=0,
        max=1_000_000_000,
        help="When so many messages of one partition in a row became dead letters, the next one stops its consumer "
        "until a restart: the topic is then more likely the wrong one than full of bad rows. 0: no limit.",
    ),
    cfg.IntOpt(
        "max_cached_series",
        default=200_000,
        min=1,
        max=100_000_000,
        help="How many series each thread that decodes metrics remembers, at 1 kB each; others take twice as long.",
    ),
]

_NUM_PROCESSORS = cfg.IntOpt(
    "num_processors",
    default=1,
    min=1,
    max=256,
    help="How many processes share the topic's partitions. A database that one process may write to, such as sqlite, "
    "takes 1.",
)


def _own_options(*, enabled: bool) -> list[cfg.Opt]:
    return [
        cfg.BoolOpt("enabled", default=enabled, help="Whether the persister stores what is in this topic."),
        inherited(_NUM_PROCESSORS),
        cfg.IntOpt(
            "threads",
            default=2,
            min=1,
            max=64,
            help="How many partitions of one process are worked on at once: one batch is decoded while another waits "
            "for the database. Each thread has a connection of its own.",
        ),
    ]


def _all_options() -> list[tuple[str, Sequence[cfg.Opt]]]:
    consumers = [(group, _own_options(enabled=enabled)) for group, (_, enabled) in _CONSUMERS.items()]
    return [(PERSISTER_GROUP, PERSISTER_OPTIONS), (KAFKA_GROUP, [_NUM_PROCESSORS]), *consumers]


def list_opts() -> Sequence[tuple[str, Sequence[cfg.Opt]]]:
    """Every group with its options, for oslo.config's generator of sample files."""
    return _all_options()


def persister_settings(conf: cfg.ConfigOpts) -> PersisterSettings:
    """What a persister is made from; registers every option that it reads.

    Raises `ConfigurationError`, which names the option.
    """
    for group, options in _all_options():
        conf.register_opts(options, group=group)
    for group in _CONSUMERS:
        kafka_options.register(conf, group)
    for name, default in _DEFAULTS_OF_KAFKA.items():
        conf.set_default(name, default, group=KAFKA_GROUP)
    config_file.check_parsed(conf)
    config_file.check_group(conf, PERSISTER_GROUP)
    groups = [
        _group_settings(conf, name, kind) for name, (kind, _) in _CONSUMERS.items() if _read(conf, name, "enabled")
    ]
    if not groups:
        raise ConfigurationError(
            f"enabled is false in every one of the groups {', '.join(_CONSUMERS)}: there is nothing to do, enable one"
        )
    return PersisterSettings(
        groups=tuple(groups),
        storage=storage_settings(conf),
        status_host=_read(conf, PERSISTER_GROUP, "status_host"),
        status_port=_read(conf, PERSISTER_GROUP, "status_port"),
        max_consecutive_dead_letters=_read(conf, PERSISTER_GROUP, "max_consecutive_dead_letters") or None,
    )


def _group_settings(conf: cfg.ConfigOpts, name: str, kind: Kind) -> GroupSettings:
    consumer = configuration.consumer_settings(conf, name)
    if consumer.group_protocol == "classic" and consumer.session_timeout_seconds is None:
        quick = min(_SESSION_TIMEOUT_SECONDS, consumer.max_poll_interval_seconds)
        consumer = replace(consumer, session_timeout_seconds=quick)
    processors = _read(conf, name, "num_processors")
    return GroupSettings(
        name=name,
        kind=kind,
        num_processors=_read(conf, KAFKA_GROUP, "num_processors") if processors is None else processors,
        threads=_read(conf, name, "threads"),
        max_cached_series=_read(conf, PERSISTER_GROUP, "max_cached_series"),
        consumer=consumer,
        # Dead letters and offsets are not one transaction: the database's offsets count, and they are idempotent.
        producer=replace(configuration.producer_settings(conf, name), transactional_id=None),
    )


def _read(conf: cfg.ConfigOpts, group: str, name: str) -> Any:
    try:
        return getattr(conf[group], name)
    except (cfg.Error, ValueError) as error:
        broken = config_file.broken_rule(error)
        raise ConfigurationError(f"{name} in group [{group}] is refused, correct it: {broken}") from None
