# SPDX-License-Identifier: Apache-2.0
"""The settings of audits: frozen, declared here as the options of ``[audit]``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from oslo_config import cfg

from monasca_common.audit.reconciliation import AuditRules, ExpectedReader
from monasca_common.audit.reports import reads
from monasca_common.kafka.config import GroupReader, OptionGroup, made_of, option, options_of
from monasca_common.kafka.errors import ConfigurationError
from monasca_common.runtime.settings import REMOVED_STATUS, StatusSettings

AUDIT_GROUP = "audit"
AUDIT_COUNT_GROUP = "audit_count"

_DAY_SECONDS = 86_400
# As often as brokers bear it, and more often where the grace period is short.
_REPORT_SECONDS, _QUICKEST_REPORT_SECONDS = 10.0, 0.1
_REPORT_SHARE = 1 / 60  # of the grace period


@dataclass(frozen=True, slots=True)
class AuditSettings:
    """Where audits go, and how they are balanced. ``folder``: ``None`` where no service of this file is audited."""

    enabled: bool = option(
        False,
        help="Whether this service reports what it had of each topic, so that `monasca-common audit show` can tell "
        "whether anything is missing.",
    )
    topic: str = option("monasca-audit", help="The topic of the reports: the same for all services.")
    bucket_seconds: int = option(
        600,
        minimum=1,
        maximum=_DAY_SECONDS,
        unit="seconds",
        help="The length of the spans of event time in which messages are counted: the same for all services. Too "
        "small: many reports, and more that is merely late. Too large: what is missing is found late.",
    )
    grace_seconds: float = option(
        600.0,
        minimum=0,
        maximum=7 * _DAY_SECONDS,
        unit="seconds",
        help="How long after the end of such a span its messages may take to arrive everywhere. Too small: what is "
        "late counts as missing. Too large: what is missing is found late.",
    )
    folder: str | None = option(
        None,
        help="The folder of this machine in which each process keeps reports until they are acknowledged, so that they "
        "outlive it; needed where enabled is true.",
    )
    window_seconds: int = option(
        _DAY_SECONDS,
        minimum=1,
        maximum=30 * _DAY_SECONDS,
        unit="seconds",
        help="How far back `monasca-common audit` balances. Too small: what was found is forgotten soon. Too large: it "
        "reads, and keeps, much.",
    )

    expected_readers: tuple[str, ...] = option(
        (),
        help="Readers that must have reported, as TOPIC/TIER/GROUP, separated by commas; for example "
        "metrics/database/1_metrics. Of one without a report within window_seconds everything is missing. Unset: a "
        "reader that never reported, or is dead for longer than that, is in no balance.",
    )
    tenant: str | None = option(
        None,
        help="The tenant (project id) to whom `monasca-common audit serve` sends the metric "
        "monasca.audit.missing_messages, and for whom `monasca-common init` defines an alarm over it. Unset: neither.",
    )
    region: str = option("RegionOne", help="The region of that metric.")
    metrics_topic: str = option("metrics", help="The topic to which that metric is sent.")
    status: StatusSettings = field(default_factory=StatusSettings, metadata=made_of(StatusSettings))

    @property
    def report_seconds(self) -> float:
        """How often a process reports: often enough for its last report to arrive within the grace period."""
        return max(_QUICKEST_REPORT_SECONDS, min(_REPORT_SECONDS, _REPORT_SHARE * self.grace_seconds))

    @property
    def rules(self) -> AuditRules:
        return AuditRules(self.bucket_seconds, self.grace_seconds, tuple(map(_reader, self.expected_readers)))


_AUDIT = OptionGroup(
    AUDIT_GROUP,
    options_of(AuditSettings),
    removed={
        **REMOVED_STATUS,
        "report_seconds": "reports are sent every 10 seconds, or more often if grace_seconds is below ten minutes",
        "balance_seconds": "audit serve reconciles the reports once a minute",
    },
)
_AUDIT_COUNT = OptionGroup(AUDIT_COUNT_GROUP, options_of(StatusSettings), removed=REMOVED_STATUS)


def list_opts() -> Sequence[tuple[str, Sequence[cfg.Opt]]]:
    """Every group with its options, for oslo.config's generator of sample files."""
    return [_AUDIT.listed(), _AUDIT_COUNT.listed()]


def count_status_settings(conf: cfg.ConfigOpts) -> StatusSettings:
    """Where `monasca-common audit count` tells how it is. Raises `ConfigurationError`, which names the option."""
    return GroupReader(conf, _AUDIT_COUNT).settings(StatusSettings)


def _reader(text: str) -> ExpectedReader:
    """Raises `ConfigurationError`."""
    topic, tier, group = (each.strip() for each in (*text.split("/", 2), "", "")[:3])
    if not (topic and tier and group and reads(tier)):
        raise ConfigurationError(
            f"expected_readers in group [{AUDIT_GROUP}] has {text!r}, which is not TOPIC/TIER/GROUP: write the name of "
            "a topic, the tier of a reader such as database, notification, spark or mirrored, and its consumer group"
        )
    return ExpectedReader(topic, tier, group)


def audit_settings(conf: cfg.ConfigOpts) -> AuditSettings:
    """What ``[audit]`` says; registers its options. Raises `ConfigurationError`, which names the option."""
    read = GroupReader(conf, _AUDIT)
    settings = read.settings(AuditSettings, status=read.settings(StatusSettings))
    _ = settings.rules  # what cannot be read of them is refused at the start
    if settings.enabled and settings.folder is None:
        raise ConfigurationError(
            f"folder in group [{AUDIT_GROUP}] is missing: reports that are not acknowledged yet outlive a crash there; "
            "name a folder of this machine, or set enabled to false"
        )
    return settings
