# SPDX-License-Identifier: Apache-2.0
"""The options of ``[api]``, and the frozen settings that they become."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from oslo_config import cfg

from monasca_common.kafka.config import config_file, configuration
from monasca_common.kafka.errors import ConfigurationError

API_GROUP = "api"
CONFIG_FILES = "MONASCA_API_CONFIG_FILES"  # in the environment, for a server without our command line

_KIB, _MIB = 1024, 1024 * 1024
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")

_OPTIONS = [
    cfg.StrOpt("host", default="127.0.0.1", help="The address to listen on; 0.0.0.0 for every one of this machine."),
    cfg.PortOpt("port", default=8070, help="The port to listen on."),
    cfg.IntOpt("workers", default=1, min=1, max=256, help="Worker processes: as many as there are cores to spare."),
    cfg.IntOpt(
        "max_in_flight",
        default=64,
        min=2,
        max=4096,
        help="How many requests one worker serves at a time; one more is answered 503 at once. Reads take half of "
        "these at most, so that a slow database leaves room for what is posted.",
    ),
    cfg.StrOpt(
        "auth_strategy",
        default="keystone",
        choices=[
            ("keystone", "tokens are validated as [keystone_authtoken] says; [oslo_policy] says who may do what"),
            ("noauth", "everybody may do everything, as the tenant that X-Project-Id names: for trying out only"),
        ],
        help="How callers are told apart.",
    ),
    cfg.StrOpt("noauth_tenant", default="noauth", help="The tenant of a caller who names none, with noauth."),
    cfg.StrOpt("region", default="RegionOne", help="The region that this API's metrics and logs belong to."),
    cfg.StrOpt(
        "invalid_metrics",
        default="refuse",
        choices=[
            ("refuse", "422, with every violation; nothing of the request is taken"),
            ("drop", "204: valid ones are taken, the others dead-lettered and counted in Monasca-Rejected"),
        ],
        help="What to do with a request that has invalid metrics in it. The agent sends a refused batch again for "
        "ever, so one bad metric blocks its batch unless it is dropped.",
    ),
    cfg.IntOpt(
        "max_body_bytes",
        default=5 * _MIB,
        min=_KIB,
        max=512 * _MIB,
        help="Largest body of a request, compressed and decompressed alike; a larger one is answered 413.",
    ),
    cfg.FloatOpt(
        "max_gzip_ratio",
        default=100.0,
        min=1.0,
        max=1100.0,
        help="How many times larger a gzip body may become; measurements shrink 5 to 50 times.",
    ),
    cfg.FloatOpt(
        "body_timeout_seconds",
        default=10.0,
        min=0.1,
        max=600.0,
        help="How long a client may be silent in the middle of a request, and may take for its body.",
    ),
    cfg.FloatOpt(
        "publish_timeout_seconds",
        min=0.1,
        max=600.0,
        help="How long a request waits until Kafka has all of it. Unset: [kafka] publish_timeout_seconds.",
    ),
    cfg.FloatOpt(
        "stalled_after_seconds",
        default=5.0,
        min=0.1,
        max=600.0,
        help="When Kafka has left a message unacknowledged for so long, posts are answered 503 without waiting, "
        "until it answers again.",
    ),
    cfg.FloatOpt(
        "stop_timeout_seconds",
        default=5.0,
        min=0.0,
        max=600.0,
        help="How long a stop waits for Kafka after the last request was answered.",
    ),
    cfg.IntOpt(
        "max_series_per_tenant",
        default=0,
        min=0,
        max=10_000_000,
        help="How many series a tenant may have; a post that would add more is answered 429. 0: no limit. A worker "
        "counts those in the database and those that it saw itself, so several workers may let a little more pass. "
        "It takes 100 bytes of each worker's memory for each series.",
    ),
    cfg.StrOpt(
        "metrics_topic",
        default="metrics",
        deprecated_opts=[cfg.DeprecatedOpt("metrics_topic", group="kafka")],
        help="Where metrics go.",
    ),
    cfg.StrOpt(
        "logs_topic",
        default="log",
        deprecated_opts=[cfg.DeprecatedOpt("logs_topics", group="kafka")],
        help="Where logs go.",
    ),
    cfg.StrOpt(
        "events_topic",
        default="monevents",
        deprecated_opts=[cfg.DeprecatedOpt("events_topic", group="kafka")],
        help="Where events go.",
    ),
    cfg.StrOpt(
        "rejected_metrics_topic",
        help="Where invalid metrics go with invalid_metrics=drop. Unset: metrics_topic with .dlq behind it.",
    ),
    cfg.IntOpt(
        "page_limit",
        default=10_000,
        min=1,
        max=1_000_000,
        help="Most elements (rows, of measurements and statistics) in one answer.",
    ),
]


@dataclass(frozen=True, slots=True)
class ApiSettings:
    """What the API is made from. Times are seconds, sizes bytes."""

    host: str = "127.0.0.1"
    port: int = 8070
    workers: int = 1
    max_in_flight: int = 64
    auth_strategy: Literal["keystone", "noauth"] = "keystone"
    noauth_tenant: str = "noauth"
    region: str = "RegionOne"
    invalid_metrics: Literal["refuse", "drop"] = "refuse"
    max_body_bytes: int = 5 * _MIB
    max_gzip_ratio: float = 100.0
    body_timeout_seconds: float = 10.0
    publish_timeout_seconds: float = 10.0
    stalled_after_seconds: float = 5.0
    stop_timeout_seconds: float = 5.0
    max_series_per_tenant: int = 0
    metrics_topic: str = "metrics"
    logs_topic: str = "log"
    events_topic: str = "monevents"
    rejected_metrics_topic: str = "metrics.dlq"
    page_limit: int = 10_000


def read_configuration(files: list[str] | None) -> cfg.ConfigOpts:
    """Read these files, or those in the standard locations. Raises `ConfigurationError`."""
    conf = cfg.ConfigOpts()
    config_file.read(conf, [], project="monasca", prog="monasca-api", default_config_files=files or None)
    if not conf.config_file:
        raise ConfigurationError(
            f"no configuration file was found: name one with --config-file or in {CONFIG_FILES}, or write "
            "/etc/monasca/monasca-api.conf"
        )
    return conf


def api_settings(conf: cfg.ConfigOpts) -> ApiSettings:
    """The settings that ``[api]`` (and what it inherits from ``[kafka]``) holds. Raises `ConfigurationError`."""
    kafka = configuration.producer_settings(conf)  # also tells of what is wrong in [kafka], before any fork
    conf.register_opts(_OPTIONS, group=API_GROUP)
    config_file.check_group(conf, API_GROUP)
    values = {option.dest: _value(conf, option.dest) for option in _OPTIONS}
    values["publish_timeout_seconds"] = values["publish_timeout_seconds"] or kafka.publish_timeout_seconds
    values["rejected_metrics_topic"] = values["rejected_metrics_topic"] or f"{values['metrics_topic']}.dlq"
    for name in ("metrics_topic", "logs_topic", "events_topic", "rejected_metrics_topic"):
        if not _TOPIC.fullmatch(values[name]):
            raise ConfigurationError(
                f"{name} in group [{API_GROUP}] is {values[name]!r}: name one topic, of 1 to 249 letters, digits, "
                "dots, dashes, underscores"
            )
    return ApiSettings(**values)


def _value(conf: cfg.ConfigOpts, name: str) -> Any:
    try:
        return getattr(conf[API_GROUP], name)
    except (cfg.Error, ValueError) as error:
        broken = config_file.broken_rule(error)
        raise ConfigurationError(f"{name} in group [{API_GROUP}] is refused, correct it: {broken}") from None


def list_opts() -> Sequence[tuple[str, Sequence[cfg.Opt]]]:
    """For oslo.config's generator of sample files."""
    return [(API_GROUP, list(_OPTIONS))]
