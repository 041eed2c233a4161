# SPDX-License-Identifier: Apache-2.0
"""The settings of the notification service and its notifiers: frozen dataclasses, declared as options."""

from __future__ import annotations

import functools
import ipaddress
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from oslo_config import cfg

from monasca_common.alarms.settings import database_settings
from monasca_common.alarms.transitions import SEVERITIES
from monasca_common.audit.settings import AuditSettings, audit_settings
from monasca_common.kafka import RetryPolicy
from monasca_common.kafka.config import (
    GroupReader,
    LinesOpt,
    OptionGroup,
    config_file,
    consumer_settings,
    option,
    options_of,
    producer_settings,
    register,
)
from monasca_common.kafka.config.schema_registry import SchemaRegistrySettings, optional_registry_settings
from monasca_common.kafka.errors import ConfigurationError
from monasca_common.kafka.settings import ConsumerSettings, ProducerSettings
from monasca_common.notification import legacy
from monasca_common.notification.addresses import IpNetwork
from monasca_common.notification.stages import Inhibition, StageRules
from monasca_common.runtime.settings import REMOVED_STATUS, StatusSettings
from monasca_common.storage.settings import StorageSettings

NOTIFICATION_GROUP = "notification"
CHANGES_GROUP = "kafka_notifications"
MAX_INTERVAL_SECONDS = 600.0  # the maximum delay between two attempts
_DAY_SECONDS = 86_400
# oslo.config accepts any function as the type of items, but its annotation does not.
_NETWORKS = functools.partial(cfg.ListOpt, item_type=cast(Any, ipaddress.ip_network))
_TIMEOUT_HELP = (
    "The maximum duration of an attempt, or of each request to Jira. Too small: slow receivers get a notification "
    "twice. Too large: a receiver that hangs occupies a thread."
)


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """The options of notifiers that send over HTTP."""

    allowed_networks: tuple[IpNetwork, ...] = option(
        (),
        type=_NETWORKS,
        help="Networks that are not public, such as 10.1.0.0/16 or 192.0.2.7, to which notifications may be sent. "
        "Through this service, tenants can then send requests to all servers in these networks.",
    )
    denied_networks: tuple[IpNetwork, ...] = option(
        (),
        type=_NETWORKS,
        help="Public networks, such as 203.0.113.0/24 or 203.0.113.7, to which no notification may be sent, for "
        "example your own addresses behind address translation. They take precedence over allowed_networks.",
    )
    ca_file: str | None = option(
        None,
        help="PEM file of the certificate authorities that sign the certificates of receivers. Unset: the authorities "
        "of the operating system.",
    )
    templates_folder: str | None = option(
        None,
        help="A folder with Jinja2 templates that replace those of this package: subject.txt, text.txt, body.html. "
        "Unset: no template is replaced.",
    )


@dataclass(frozen=True, slots=True)
class StageSettings:
    """The rules for all tenants; silences belong to one tenant."""

    group_by: tuple[str, ...] = option(
        (),
        help="Send the notifications of a method in one message if their alarms have equal values of these properties: "
        "definition (the alarm definition) or keys of dimensions, separated by commas. Unset: each notification is a "
        "separate message. Too many: most groups contain one alarm, which waits needlessly.",
    )
    group_wait: float = option(
        30.0,
        minimum=0.0,
        maximum=3600.0,
        unit="seconds",
        help="The time that the first notification of a group waits for others. Too small: a failure of many hosts "
        "sends many messages, and alarms of services are sent before the alarm of their host inhibits them. Too large: "
        "notifications are late.",
    )
    max_per_minute: int = option(
        0,
        minimum=0,
        maximum=100_000,
        unit="messages",
        help="The maximum number of messages to a method in a minute. Further notifications are sent in one digest "
        "after the minute. 0: no limit. Too small: notifications are late. Too large: a failure of many hosts floods a "
        "receiver.",
    )
    inhibit_by_definition: tuple[str, ...] = option(
        (),
        type=LinesOpt,
        help="NAME=KEYS. KEYS: keys of dimensions, separated by commas. While an alarm of the definition NAME is in "
        "the state ALARM, notifications about alarms of other definitions with equal values of KEYS are deferred. May "
        "be given several times, the strongest first: a definition is inhibited only by the definitions before it.",
    )
    inhibit_by_severity: tuple[str, ...] = option(
        (),
        type=LinesOpt,
        help="SEVERITY=KEYS. While an alarm of this severity is in the state ALARM, notifications about alarms of "
        "lower severities with equal values of KEYS are deferred. May be given several times.",
    )


@dataclass(frozen=True, slots=True)
class NotifierSettings:
    """The options of every notifier."""

    timeout: float = option(10.0, minimum=0.1, maximum=600.0, unit="seconds", help=_TIMEOUT_HELP)


@dataclass(frozen=True, slots=True)
class WebhookSettings(NotifierSettings):
    """``hmac_secret``: never shown."""

    hmac_secret: str | None = option(
        None,
        secret=True,
        help="The secret from which the key of each webhook method is derived. The key signs the time, the id and the "
        "body of a notification: the header X-Monasca-Signature is sha256= and the HMAC in hexadecimal digits. Unset: "
        "webhooks are not signed. Write $$ for each $.",
    )


@dataclass(frozen=True, slots=True)
class PagerdutySettings(NotifierSettings):
    url: str = option(
        "https://events.pagerduty.com/v2/enqueue", help="The URL of Events API v2, to which events are sent."
    )


@dataclass(frozen=True, slots=True)
class JiraSettings(NotifierSettings):
    """``password`` and ``token``: never shown."""

    url: str | None = option(
        None,
        help="The URL of the Jira server, such as https://jira.example.org. The credentials are sent only there: "
        "methods with an address on another server are refused. Unset: methods of this type are refused.",
    )
    user: str | None = option(
        None, secret=True, help="The user for HTTP basic authentication. Unset: token is used. Write $$ for each $."
    )
    password: str | None = option(
        None, secret=True, help="The password of user; in Jira Cloud, an API token. Write $$ for each $."
    )
    token: str | None = option(
        None,
        secret=True,
        help="A personal access token, used instead of user and password. Unset: user and password are used. "
        "Write $$ for each $.",
    )
    issue_type: str = option("Bug", help="The type of new issues.")


@dataclass(frozen=True, slots=True)
class EmailSettings(NotifierSettings):
    """``password``: never shown."""

    server: str = option("localhost", help="The SMTP server.")
    port: int = option(25, type=cfg.PortOpt, help="The port of the SMTP server.")
    user: str | None = option(None, secret=True, help="The user to log in as. Unset: no login. Write $$ for each $.")
    password: str | None = option(None, secret=True, help="The password of user. Write $$ for each $.")
    from_addr: str = option("monasca@localhost", help="The sender of every e-mail.")
    starttls: bool = option(
        True,
        help="Encrypt with STARTTLS and check the server's certificate; a server without STARTTLS is refused. false: "
        "e-mails can be read on the network path. It must be true if user is set.",
    )
    ca_file: str | None = option(
        None,
        help="PEM file of the certificate authorities that sign the server's certificate. Unset: the authorities of "
        "the operating system.",
    )


@dataclass(frozen=True, slots=True)
class ProcessorSettings:
    """``[alarm_processor]``."""

    ttl: int = option(
        14_400,
        minimum=1,
        maximum=31_536_000,
        unit="seconds",
        help="The maximum age of an alarm change; older changes are not sent. Too small: changes during an outage of "
        "this service are not sent. Too large: changes that no longer matter are sent.",
    )
    number: int = option(
        128,
        minimum=1,
        maximum=1024,
        unit="threads",
        help="The number of changes that are handled concurrently, and of notifications that are sent concurrently. "
        "Too small: slow receivers delay other notifications. Too large: waiting threads take memory.",
    )
    retention_days: int = option(
        30,
        minimum=1,
        maximum=3650,
        unit="days",
        help="The time that a notification stays in the table notification after its last attempt; at least ttl. Too "
        "small: "
        "a change that Kafka redelivers after the removal is sent again. Too large: the table fills the database.",
    )

    @property
    def retention_ms(self) -> int:
        """The time that the ledger keeps a row: at least as long as its change may be sent, so that no notification is
        sent twice."""
        return max(self.retention_days * _DAY_SECONDS, self.ttl) * 1000


@dataclass(frozen=True, slots=True)
class RetrySettings:
    """``[retry_engine]``."""

    interval: float = option(
        30.0,
        minimum=0.01,
        maximum=86_400.0,
        unit="seconds",
        help="The delay after the first failed attempt. Each further failure doubles it, and a random part of up to "
        "one half is subtracted. Too small: retries overload an unavailable receiver. Too large: notifications are "
        "late.",
    )
    max_attempts: int = option(
        5,
        minimum=1,
        maximum=1000,
        unit="attempts",
        help="The number of attempts before a notification is given up. Too small: notifications are lost "
        "in a short outage of a receiver. Too large: a method that does not work is detected late.",
    )

    def policy(self) -> RetryPolicy:
        longest = max(self.interval, MAX_INTERVAL_SECONDS)
        return RetryPolicy(attempts=self.max_attempts, backoff_seconds=self.interval, max_backoff_seconds=longest)


@dataclass(frozen=True, slots=True)
class NotificationSettings:
    """``producer``: the settings of the dead-letter producer. ``audit``: if ``None``, handled messages are not
    reported. ``registry``: if ``None``, changes in Avro become dead letters."""

    consumer: ConsumerSettings
    producer: ProducerSettings
    audit: AuditSettings | None
    database: StorageSettings
    processing: ProcessorSettings
    retry: RetrySettings
    rules: StageRules
    registry: SchemaRegistrySettings | None = None
    status: StatusSettings = field(default_factory=StatusSettings)

    @property
    def consumers(self) -> tuple[ConsumerSettings, ...]:
        return (self.consumer,)


_PROCESSOR = OptionGroup(
    "alarm_processor",
    options_of(ProcessorSettings),
    removed={
        "max_at_one_method": "at most 8 notifications are sent to one method concurrently",
        "notification_topic": "notifications are not published; GET /v2.0/notifications returns them",
        "max_at_one_destination": "at most 16 notifications are sent to one host concurrently",
    },
)
_RETRY = OptionGroup(
    "retry_engine",
    options_of(RetrySettings),
    removed={
        "max_interval": "two attempts are at most 600 seconds apart, or interval if it is longer",
        "number": "number in group [alarm_processor] limits retries and periodic notifications, too",
        "keep_superseded": "a retry of an older state is not sent after a newer one",
    },
)
_HTTP = OptionGroup(
    NOTIFICATION_GROUP,
    (*options_of(HttpSettings), *options_of(StageSettings), *options_of(StatusSettings)),
    removed={
        **REMOVED_STATUS,
        "connect_timeout_seconds": "connecting to an address of a receiver may take 3 seconds",
        "read_timeout_seconds": "timeout in the group of each notifier limits an attempt",
        "max_response_bytes": "at most 65,536 bytes of a response are read",
    },
)
_ALLOWED = {"allowed_networks": "allowed_networks in [notification] permits networks for every type"}
_OPERATORS = {"allowed_networks": "every address of the server in url is permitted"}
_WEBHOOK = OptionGroup("webhook_notifier", options_of(WebhookSettings), removed=_ALLOWED)
_SLACK = OptionGroup(
    "slack_notifier", options_of(NotifierSettings), old=legacy.names("slack_notifier"), removed=_ALLOWED
)
_PAGERDUTY = OptionGroup("pagerduty_notifier", options_of(PagerdutySettings), removed=_OPERATORS)
_JIRA = OptionGroup(
    "jira_notifier",
    options_of(JiraSettings),
    old=legacy.names("jira_notifier"),
    removed={**_OPERATORS, "reopen_transition": "issues that are resolved get a comment and stay resolved"},
)
_EMAIL = OptionGroup("email_notifier", options_of(EmailSettings), old=legacy.names("email_notifier"))


def list_opts() -> Sequence[tuple[str, Sequence[cfg.Opt]]]:
    """Return every group with its options, for oslo.config's sample generator."""
    notifiers = (_WEBHOOK, _EMAIL, _PAGERDUTY, _SLACK, _JIRA)
    return [group.listed() for group in (_HTTP, _PROCESSOR, _RETRY, *notifiers)]


def notification_settings(conf: cfg.ConfigOpts) -> NotificationSettings:
    """Read the settings, and register their options. Raises `ConfigurationError`, which names the option."""
    for group in legacy.OLD_GROUPS:
        config_file.log_old_group(conf, group)
    register(conf, CHANGES_GROUP)
    audit = audit_settings(conf)
    return NotificationSettings(
        consumer_settings(conf, CHANGES_GROUP),
        replace(producer_settings(conf, CHANGES_GROUP), transactional_id=None),
        audit if audit.enabled else None,
        database_settings(conf),
        GroupReader(conf, _PROCESSOR).settings(ProcessorSettings),
        GroupReader(conf, _RETRY).settings(RetrySettings),
        stage_rules(conf),
        optional_registry_settings(conf),
        GroupReader(conf, _HTTP).settings(StatusSettings),
    )


def stage_rules(conf: cfg.ConfigOpts) -> StageRules:
    """Return the rules of the stages. Raises `ConfigurationError`, which names the option."""
    read = GroupReader(conf, _HTTP)
    settings = read.settings(StageSettings)
    inhibitions = [Inhibition(keys, definition=name) for name, keys in _named(read, "inhibit_by_definition")]
    for severity, keys in _named(read, "inhibit_by_severity"):
        if severity not in SEVERITIES:
            raise read.error("inhibit_by_severity", f"names {severity!r}: write one of {', '.join(SEVERITIES)}")
        inhibitions.append(Inhibition(keys, severity=severity))
    wait_ms = round(settings.group_wait * 1000)
    return StageRules(settings.group_by, wait_ms, settings.max_per_minute, tuple(inhibitions))


def _named(read: GroupReader, option_name: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the name and the keys of each line. Raises `ConfigurationError`."""
    for line in read[option_name]:
        name, _, keys = line.rpartition("=")
        named = tuple(key.strip() for key in keys.split(",") if key.strip())
        if not name.strip() or not named:
            raise read.error(option_name, f"is {line!r}: write NAME=KEY,KEY")
        yield name.strip(), named


def http_settings(conf: cfg.ConfigOpts) -> HttpSettings:
    """Return the settings for HTTP. Raises `ConfigurationError`, which names the option."""
    return GroupReader(conf, _HTTP).settings(HttpSettings)


def webhook_settings(conf: cfg.ConfigOpts) -> WebhookSettings:
    return GroupReader(conf, _WEBHOOK).settings(WebhookSettings)


def slack_settings(conf: cfg.ConfigOpts) -> NotifierSettings:
    return GroupReader(conf, _SLACK).settings(NotifierSettings)


def pagerduty_settings(conf: cfg.ConfigOpts) -> PagerdutySettings:
    settings = GroupReader(conf, _PAGERDUTY).settings(PagerdutySettings)
    if settings.url != legacy.EVENTS_V1:
        return settings
    config_file.warn_once(f"[pagerduty_notifier] url is ignored: {legacy.EVENTS_V1_IGNORED}")
    return replace(settings, url=PagerdutySettings().url)


def jira_settings(conf: cfg.ConfigOpts) -> JiraSettings:
    settings = GroupReader(conf, _JIRA).settings(JiraSettings)
    if settings.url is not None and not settings.url.startswith(("http://", "https://")):
        raise ConfigurationError("url in group [jira_notifier] is not a URL: write https://jira.example.org")
    return settings


def email_settings(conf: cfg.ConfigOpts) -> EmailSettings:
    settings = GroupReader(conf, _EMAIL).settings(EmailSettings)
    if settings.user and not settings.starttls:
        raise ConfigurationError(
            "starttls in group [email_notifier] is false and user is set, so the password would be sent unencrypted: "
            "set starttls to true, or remove user"
        )
    return settings
