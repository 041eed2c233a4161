# SPDX-License-Identifier: Apache-2.0
"""The settings of the service of lag, and of the check at the start of every service.

Frozen, and declared here as options. This module imports neither a Kafka client nor Prometheus.
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
# Of `monasca-common dlq replay`, unless --group names another.
DLQ_GROUP = "monasca-dlq-replay"


@dataclass(frozen=True, slots=True)
class JudgingSettings:
    """When a consumer is judged, and how."""

    window_seconds: float = option(
        60.0,
        minimum=1.0,
        maximum=86_400.0,
        unit="seconds",
        help="How long a consumer may be silent, or late, before it is judged. Too small: pauses look like faults. Too "
        "large: faults are reported late.",
    )
    least_headroom: float = option(
        0.25,
        minimum=0.0,
        maximum=1.0,
        unit="part of the time",
        help="Unread messages expire soon when no more than this part of the time that Kafka keeps them is left until "
        "one of them is deleted unread, at the speed at which their group reads: 0.25 is a quarter. `monasca-common "
        "lag`, `durability check`, the dashboard and the alert MonascaUnreadExpires go by it. Too small: nobody has "
        "the time to do something. Too large: groups that are slow on purpose look like faults.",
    )

    allowed_lag: int = option(
        0,
        minimum=0,
        maximum=1_000_000_000,
        unit="messages",
        help="A partition with at most this many unread messages has the status OK, as with allowed-lag of Burrow. "
        "Lost messages and those that expire soon are errors nevertheless. Too large: a consumer that has stopped on a "
        "quiet topic is not reported.",
    )

    @property
    def window(self) -> LagWindow:
        return LagWindow(seconds=self.window_seconds, least_headroom=self.least_headroom, allowed_lag=self.allowed_lag)


@dataclass(frozen=True, slots=True)
class LagSettings:
    """The settings of the service of lag. ``groups``: patterns of names. ``topic``: has the history."""

    connection: ConnectionSettings
    producer: ProducerSettings
    status: StatusSettings = field(default_factory=StatusSettings, metadata=made_of(StatusSettings))
    interval_seconds: float = option(
        10.0,
        minimum=1.0,
        maximum=3600.0,
        unit="seconds",
        help="The time from one survey of all groups to the next. Too small: brokers are asked all the time. Too "
        "large: faults are reported late, and less is known of the ends of logs.",
    )
    judging: JudgingSettings = field(default_factory=JudgingSettings, metadata=made_of(JudgingSettings))
    groups: tuple[str, ...] = option(
        ("*",),
        help="The consumer groups that are looked at, separated by commas; * and ? stand for other characters.",
    )
    topic: str = option(
        HISTORY_TOPIC,
        help="The compacted topic that keeps the history, so that a restart knows what came before it; "
        "`monasca-common init` makes it.",
    )
    max_partitions: int = option(
        10_000,
        minimum=1,
        maximum=1_000_000,
        unit="partitions",
        help="How many partitions of groups have metrics of their own, the worst first. Too small: the partition at "
        "fault is found by `monasca-common lag show` alone. Too large: Prometheus has too many series.",
    )

    def watches(self, group: str) -> bool:
        return any(fnmatch.fnmatchcase(group, pattern) for pattern in self.groups)


@dataclass(frozen=True, slots=True)
class StartCheckSettings:
    durability_check: Literal["off", "warn", "refuse"] = option(
        "warn",
        choices={
            "off": "nothing is checked",
            "warn": "what could lose messages is logged in one line, and the service starts",
            "refuse": "a service does not start while messages could be lost, or while that is not known",
        },
        help="What `monasca-common api`, `persister`, `notification`, `pipeline run`, `lag serve`, `audit serve`, "
        "`audit count`, `dashboard` and `mirror run` do at their start about topics of theirs that could lose "
        "messages; `monasca-common durability check` shows all of that.",
    )


_LAG = OptionGroup(
    LAG_GROUP,
    options_of(LagSettings),
    removed={**REMOVED_STATUS, "read_seconds": "a survey reads for at most 60 seconds"},
)
_MONITORING = OptionGroup(MONITORING_GROUP, options_of(StartCheckSettings))


def list_opts() -> Sequence[tuple[str, Sequence[cfg.Opt]]]:
    """Every group with its options, for oslo.config's generator of sample files."""
    return [_LAG.listed(), _MONITORING.listed()]


def lag_settings(conf: cfg.ConfigOpts) -> LagSettings:
    """Registers every option that it reads. Raises `ConfigurationError`, which names the option."""
    read = GroupReader(conf, _LAG)
    return read.settings(
        LagSettings,
        connection=connection_settings(conf),
        producer=replace(producer_settings(conf), transactional_id=None),
        status=read.settings(StatusSettings),
        judging=read.settings(JudgingSettings),
    )


def lag_window(conf: cfg.ConfigOpts) -> LagWindow:
    """As ``[lag]`` has it. Raises `ConfigurationError`, which names the option."""
    return GroupReader(conf, _LAG).settings(JudgingSettings).window


def history_topic(conf: cfg.ConfigOpts) -> str:
    """Where ``lag serve`` keeps its history. Raises `ConfigurationError`, which names the option."""
    return str(GroupReader(conf, _LAG)["topic"])


def start_check_settings(conf: cfg.ConfigOpts) -> StartCheckSettings:
    """Raises `ConfigurationError`, which names the option."""
    return GroupReader(conf, _MONITORING).settings(StartCheckSettings)
