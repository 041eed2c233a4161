# SPDX-License-Identifier: Apache-2.0
"""The settings of notifications: frozen, declared here as the options of ``[notification]`` and of each notifier."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass

from oslo_config import cfg

from monasca_common.kafka.config import GroupReader, OptionGroup, OptionType, option, options_of
from monasca_common.kafka.errors import ConfigurationError

NOTIFICATION_GROUP = "notification"
_TIMEOUT_HELP = (
    "How long one attempt may take. Too small: slow receivers get a notification twice. Too large: a receiver that "
    "hangs keeps a thread."
)


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """How notifiers send over HTTP."""

    allowed_networks: tuple[str, ...] = option(
        (),
        help="Networks, as 10.1.0.0/16 or 192.0.2.7, to which notifications may go although their addresses are not "
        "public. Tenants can then make this service send requests to whatever answers there.",
    )
    connect_timeout_seconds: float = option(
        3.0,
        minimum=0.1,
        maximum=60.0,
        unit="seconds",
        help="How long connecting to a receiver may take. Too small: distant receivers are not reached. Too large: a "
        "receiver that is down keeps a thread.",
    )
    read_timeout_seconds: float = option(
        5.0,
        minimum=0.1,
        maximum=600.0,
        unit="seconds",
        help="How long a receiver may be silent while its answer is awaited. Too small: slow receivers get a "
        "notification twice. Too large: a receiver that hangs keeps a thread.",
    )
    max_response_bytes: int = option(
        8192,
        minimum=0,
        maximum=1048576,
        unit="bytes",
        help="How much of an answer's body is read; the rest is left. Too small: Slack's errors are not recognized. "
        "Too large: receivers can fill the memory.",
    )
    ca_file: str | None = option(
        None,
        help="PEM file of the certificate authorities that receivers' certificates are checked with. Unset: those "
        "of the operating system.",
    )
    templates_folder: str | None = option(
        None,
        help="A folder with templates of Jinja2 that replace those of this package: subject.txt, text.txt, body.html. "
        "Unset: none is replaced.",
    )

    def networks(self) -> tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]:
        """Raises `ValueError`."""
        return tuple(map(ipaddress.ip_network, self.allowed_networks))


@dataclass(frozen=True, slots=True)
class WebhookSettings:
    """``hmac_secret``: never shown."""

    timeout: float = option(10.0, minimum=0.1, maximum=600.0, unit="seconds", help=_TIMEOUT_HELP)
    hmac_secret: str | None = option(
        None,
        secret=True,
        help="Signs each body: the header X-Monasca-Signature is sha256= and the HMAC in hexadecimal digits. Unset: "
        "nothing is signed. Write $$ for each $.",
    )


@dataclass(frozen=True, slots=True)
class SlackSettings:
    timeout: float = option(10.0, minimum=0.1, maximum=600.0, unit="seconds", help=_TIMEOUT_HELP)


@dataclass(frozen=True, slots=True)
class PagerdutySettings:
    timeout: float = option(10.0, minimum=0.1, maximum=600.0, unit="seconds", help=_TIMEOUT_HELP)
    url: str = option(
        "https://events.pagerduty.com/v2/enqueue", help="Where events are sent: an endpoint of Events API v2."
    )


@dataclass(frozen=True, slots=True)
class EmailSettings:
    """``password``: never shown."""

    timeout: float = option(10.0, minimum=0.1, maximum=600.0, unit="seconds", help=_TIMEOUT_HELP)
    server: str = option("localhost", help="The SMTP server.")
    port: int = option(25, type=OptionType.PORT, help="The port of the SMTP server.")
    user: str | None = option(None, secret=True, help="The user to log in as. Unset: no login. Write $$ for each $.")
    password: str | None = option(None, secret=True, help="The password of user. Write $$ for each $.")
    from_addr: str = option("monasca@localhost", help="The sender of every e-mail.")
    starttls: bool = option(
        True,
        help="Encrypt with STARTTLS, and check the server's certificate; a server that offers none is refused. false: "
        "everybody on the network path can read the e-mails. It must be true where there is a user.",
    )
    ca_file: str | None = option(
        None,
        help="PEM file of the certificate authorities that the server's certificate is checked with. Unset: those "
        "of the operating system.",
    )


_HTTP = OptionGroup(NOTIFICATION_GROUP, options_of(HttpSettings))
_WEBHOOK = OptionGroup("webhook_notifier", options_of(WebhookSettings))
_SLACK = OptionGroup("slack_notifier", options_of(SlackSettings))
_PAGERDUTY = OptionGroup("pagerduty_notifier", options_of(PagerdutySettings))
_EMAIL = OptionGroup("email_notifier", options_of(EmailSettings))


def list_opts() -> Sequence[tuple[str, Sequence[cfg.Opt]]]:
    """Every group with its options, for oslo.config's generator of sample files."""
    return [group.listed() for group in (_HTTP, _WEBHOOK, _EMAIL, _PAGERDUTY, _SLACK)]


def http_settings(conf: cfg.ConfigOpts) -> HttpSettings:
    """Raises `ConfigurationError`, which names the option; so do the others."""
    read = GroupReader(conf, _HTTP)
    settings = read.settings(HttpSettings)
    try:
        settings.networks()
    except ValueError as error:
        raise read.error("allowed_networks", f"is refused: {error}; write networks as 10.1.0.0/16") from None
    return settings


def webhook_settings(conf: cfg.ConfigOpts) -> WebhookSettings:
    return GroupReader(conf, _WEBHOOK).settings(WebhookSettings)


def slack_settings(conf: cfg.ConfigOpts) -> SlackSettings:
    return GroupReader(conf, _SLACK).settings(SlackSettings)


def pagerduty_settings(conf: cfg.ConfigOpts) -> PagerdutySettings:
    return GroupReader(conf, _PAGERDUTY).settings(PagerdutySettings)


def email_settings(conf: cfg.ConfigOpts) -> EmailSettings:
    settings = GroupReader(conf, _EMAIL).settings(EmailSettings)
    if settings.user and not settings.starttls:
        raise ConfigurationError(
            "starttls in group [email_notifier] is false, and user is set: the password would be sent in the clear; "
            "set starttls to true, or remove user"
        )
    return settings
