# SPDX-License-Identifier: Apache-2.0
"""The settings of the audit, declared as the options of ``[audit]`` and ``[audit_count]``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from oslo_config import cfg

from monasca_common.audit.reports import bucket_of, reads
from monasca_common.kafka.config import GroupReader, OptionGroup, made_of, option, options_of
from monasca_common.kafka.errors import ConfigurationError
from monasca_common.runtime.settings import REMOVED_STATUS, StatusSettings

AUDIT_GROUP = "audit"
AUDIT_COUNT_GROUP = "audit_count"
PREFIX = "monasca_audit"

_DAY_SECONDS = 86_400
# The interval limits the load on brokers. A short grace period shortens it.
_REPORT_SECONDS, _QUICKEST_REPORT_SECONDS = 10.0, 0.1
_REPORT_SHARE = 1 / 60  # the share of the grace period
_RENEWAL_SHARE = 0.25  # the share of the window


class ExpectedReader(NamedTuple):
    """A reader of a topic, with its tier and consumer group."""

    topic: str
    tier: str
    application: str


@dataclass(frozen=True, slots=True)
class AuditSettings:
    """Options of reporters and of the reconciliation. ``folder`` is ``None`` if no service is audited."""

    enabled: bool = option(
        False,
        help="Whether this service reports the messages of each topic that it publishes or handles, so that "
        "`monasca-common audit show` finds missing messages.",
    )
    topic: str = option("monasca-audit", help="The topic of the reports. Use the same topic for all services.")
    bucket_seconds: int = option(
        600,
        minimum=1,
        maximum=_DAY_SECONDS,
        unit="seconds",
        help="The length of the buckets of event time in which messages are counted. Use the same value for all "
        "services. Too small: many reports, and more late messages. Too large: missing messages are found late.",
    )
    grace_seconds: float = option(
        600.0,
        minimum=0,
        maximum=7 * _DAY_SECONDS,
        unit="seconds",
        help="The time after the end of a bucket within which its messages arrive at all tiers. Too small: late "
        "messages count as missing. Too large: missing messages are found late.",
    )
    folder: str | None = option(
        None,
        help="The local folder in which each process stores its reports until they are acknowledged, so that they "
        "survive the end of the process. Required if enabled is true.",
    )
    window_seconds: int = option(
        _DAY_SECONDS,
        minimum=1,
        maximum=30 * _DAY_SECONDS,
        unit="seconds",
        help="The length of the time window that `monasca-common audit` reconciles. Too small: missing messages are "
        "reported only for a short time. Too large: reading the reports takes a long time and much memory.",
    )

    expected_readers: tuple[str, ...] = option(
        (),
        help="Readers that must report, as TOPIC/TIER/GROUP, separated by commas; for example "
        "metrics/database/1_metrics. If a reader has no report within window_seconds, all its messages count as "
        "missing. Unset: readers without reports are ignored.",
    )
    status: StatusSettings = field(default_factory=StatusSettings, metadata=made_of(StatusSettings))

    @property
    def report_seconds(self) -> float:
        """The interval of reports, short enough for the last report to arrive within the grace period."""
        return max(_QUICKEST_REPORT_SECONDS, min(_REPORT_SECONDS, _REPORT_SHARE * self.grace_seconds))

    @property
    def renewal_seconds(self) -> float:
        """The time after which services read the reports again. They also read the reports from this long before the
        window, which contain the readers' positions at its start and a surplus of the preceding bucket."""
        return max(self.bucket_seconds, _RENEWAL_SHARE * self.window_seconds)

    @property
    def readers(self) -> tuple[ExpectedReader, ...]:
        """The expected readers. Raises `ConfigurationError`."""
        return tuple(map(_reader, self.expected_readers))

    def window_start(self, now_ms: int, window_seconds: int | None = None) -> int:
        """Return the start of the first bucket of the window that ends now."""
        since_ms = max(0, now_ms - (window_seconds or self.window_seconds) * 1000)
        return bucket_of(since_ms, self.bucket_seconds)

    def before(self, bucket_ms: int) -> int:
        """Return the start of the previous bucket, whose surplus can belong to this bucket."""
        return max(0, bucket_ms - self.bucket_seconds * 1000)


_AUDIT = OptionGroup(
    AUDIT_GROUP,
    options_of(AuditSettings),
    removed={
        **REMOVED_STATUS,
        "report_seconds": "reports are sent every 10 seconds, or more often if grace_seconds is below ten minutes",
        "balance_seconds": "audit serve reconciles the reports once a minute",
        **dict.fromkeys(
            ("tenant", "region", "metrics_topic"),
            "with status_port, audit serve exports the Prometheus metric monasca_audit_missing_messages",
        ),
    },
)
_AUDIT_COUNT = OptionGroup(AUDIT_COUNT_GROUP, options_of(StatusSettings), removed=REMOVED_STATUS)


def list_opts() -> Sequence[tuple[str, Sequence[cfg.Opt]]]:
    """Return every group with its options, for oslo.config's sample generator."""
    return [_AUDIT.listed(), _AUDIT_COUNT.listed()]


def count_status_settings(conf: cfg.ConfigOpts) -> StatusSettings:
    """Read the address of the status of `monasca-common audit count`. Raises `ConfigurationError`."""
    return GroupReader(conf, _AUDIT_COUNT).settings(StatusSettings)


def _reader(text: str) -> ExpectedReader:
    """Parse ``TOPIC/TIER/GROUP``. Raises `ConfigurationError`."""
    topic, tier, group = (each.strip() for each in (*text.split("/", 2), "", "")[:3])
    if not (topic and tier and group and reads(tier)):
        raise ConfigurationError(
            f"expected_readers in group [{AUDIT_GROUP}] has {text!r}, which is not TOPIC/TIER/GROUP: write a topic, "
            "the tier of a reader, such as database, notification, spark or mirrored, and its consumer group"
        )
    return ExpectedReader(topic, tier, group)


def audit_settings(conf: cfg.ConfigOpts) -> AuditSettings:
    """Read ``[audit]``. Raises `ConfigurationError`, which names the option."""
    read = GroupReader(conf, _AUDIT)
    settings = read.settings(AuditSettings, status=read.settings(StatusSettings))
    _ = settings.readers  # this call refuses invalid expected_readers
    if settings.enabled and settings.folder is None:
        raise ConfigurationError(
            f"folder in group [{AUDIT_GROUP}] is missing: name a local folder for unacknowledged reports, or set "
            "enabled to false"
        )
    return settings
