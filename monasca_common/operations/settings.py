# SPDX-License-Identifier: Apache-2.0
"""The settings of the lag service, and of the durability check at the start of every service.

This module imports neither a Kafka client nor Prometheus.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from oslo_config import cfg

from monasca_common.kafka.config import (
    GroupReader,
    OptionGroup,
    connection_settings,
    made_of,
    option,
    options_of,
    producer_settings,
)
from monasca_common.kafka.settings import ConnectionSettings, ProducerSettings
from monasca_common.operations.lag.verdict import LagWindow
from monasca_common.runtime.settings import REMOVED_STATUS, StatusSettings

LAG_GROUP = "lag"
MONITORING_GROUP = "monitoring"
HISTORY_TOPIC = "monasca-lag"
DLQ_GROUP = "monasca-dlq-replay"  # the default group of `monasca-common dlq replay`


@dataclass(frozen=True, slots=True)
class LagLimits:
    """The limits of verdicts on consumers."""

    window_seconds: float = option(
        60.0,
        minimum=1.0,
        maximum=86_400.0,
        unit="seconds",
        help="Seconds that a consumer may be silent or late before it has a problem status. Too small: pauses are "
        "reported. Too large: problems are reported late.",
    )
    least_headroom: float = option(
        0.25,
        minimum=0.0,
        maximum=1.0,
        unit="fraction of the time",
        help="Unread messages expire soon if, at the present speed of their group, retention deletes the first one "
        "within this fraction of the retention time (0.25: a quarter). Used by `monasca-common lag`, `durability "
        "check`, the dashboard and the alert MonascaUnreadExpires. Too small: operators have no time to act. Too "
        "large: groups that are slow on purpose are reported.",
    )

    allowed_lag: int = option(
        0,
        minimum=0,
        maximum=1_000_000_000,
        unit="messages",
        help="A partition with at most this many unread messages has the status OK, like Burrow's allowed-lag. Lost "
        "messages and messages that expire soon are still errors. Too large: a stopped consumer of a quiet topic is "
        "not reported.",
    )

    @property
    def window(self) -> LagWindow:
        return LagWindow(seconds=self.window_seconds, least_headroom=self.least_headroom, allowed_lag=self.allowed_lag)


@dataclass(frozen=True, slots=True)
class LagSettings:
    """The settings of the lag service. ``groups``: patterns of group names. ``topic``: the topic of the history."""

    connection: ConnectionSettings
    producer: ProducerSettings
    status: StatusSettings = field(default_factory=StatusSettings, metadata=made_of(StatusSettings))
    interval_seconds: float = option(
        10.0,
        minimum=1.0,
        maximum=3600.0,
        unit="seconds",
        help="Seconds between surveys of all groups. Too small: load on the brokers. Too large: problems are reported "
        "late, verdicts are less exact, and above 1200 the alert MonascaLagUnknown fires: raise its limit.",
    )
    limits: LagLimits = field(default_factory=LagLimits, metadata=made_of(LagLimits))
    groups: tuple[str, ...] = option(
        ("*",),
        help="The consumer groups to survey, separated by commas, with the wildcards * and ?.",
    )
    topic: str = option(
        HISTORY_TOPIC,
        help="The compacted topic that stores the history for restarts; `monasca-common init` creates it.",
    )

    def watches(self, group: str) -> bool:
        return any(fnmatch.fnmatchcase(group, pattern) for pattern in self.groups)


@dataclass(frozen=True, slots=True)
class StartCheckSettings:
    durability_check: Literal["off", "warn", "refuse"] = option(
        "warn",
        choices={
            "off": "check nothing",
            "warn": "log risks in one line, and start",
            "refuse": "do not start if messages could be lost, or if this is unknown",
        },
        help="The action at the start of services whose topics could lose messages. `monasca-common durability check` "
        "shows all findings.",
    )


_LAG = OptionGroup(
    LAG_GROUP,
    options_of(LagSettings),
    removed={
        **REMOVED_STATUS,
        "read_seconds": "a survey reads for at most 60 seconds",
        "max_partitions": "the 10,000 worst partitions have their own metrics",
    },
)
_MONITORING = OptionGroup(MONITORING_GROUP, options_of(StartCheckSettings))


def list_opts() -> Sequence[tuple[str, Sequence[cfg.Opt]]]:
    """Return the option groups for oslo.config's sample generator."""
    return [_LAG.listed(), _MONITORING.listed()]


def lag_settings(conf: cfg.ConfigOpts) -> LagSettings:
    """Return the settings of ``[lag]``. Raises `ConfigurationError`, which names the option."""
    read = GroupReader(conf, _LAG)
    return read.settings(
        LagSettings,
        connection=connection_settings(conf),
        producer=replace(producer_settings(conf), transactional_id=None),
        status=read.settings(StatusSettings),
        limits=read.settings(LagLimits),
    )


def lag_window(conf: cfg.ConfigOpts) -> LagWindow:
    """Return the window of ``[lag]``. Raises `ConfigurationError`, which names the option."""
    return GroupReader(conf, _LAG).settings(LagLimits).window


def history_topic(conf: cfg.ConfigOpts) -> str:
    """Return the topic of ``lag serve``. Raises `ConfigurationError`, which names the option."""
    return str(GroupReader(conf, _LAG)["topic"])


def start_check_settings(conf: cfg.ConfigOpts) -> StartCheckSettings:
    """Return the settings of ``[monitoring]``. Raises `ConfigurationError`, which names the option."""
    return GroupReader(conf, _MONITORING).settings(StartCheckSettings)
