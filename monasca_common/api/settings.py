# SPDX-License-Identifier: Apache-2.0
"""The settings of the API: frozen, declared here as the options of ``[api]``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from oslo_config import cfg

from monasca_common.api import legacy
from monasca_common.kafka.config import (
    GroupReader,
    OptionGroup,
    config_file,
    made_of,
    option,
    options_of,
    producer_settings,
)
from monasca_common.kafka.errors import ConfigurationError
from monasca_common.runtime.settings import REMOVED_STATUS, StatusSettings

API_GROUP = "api"
CONFIG_FILES = "MONASCA_API_CONFIG_FILES"  # in the environment, for a server without our command line

_KIB, _MIB = 1024, 1024 * 1024
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")


@dataclass(frozen=True, slots=True)
class ApiSettings:
    """The settings of the API. Times are in seconds, sizes in bytes."""

    host: str = option("127.0.0.1", help="The address to listen on; 0.0.0.0 for every address of this machine.")
    port: int = option(8070, type=cfg.PortOpt, help="The port to listen on.")
    workers: int = option(
        1,
        minimum=1,
        maximum=256,
        unit="processes",
        help="How many processes serve requests: one per free core. Too small: requests wait. Too large: processes "
        "compete for cores, and each needs memory and connections.",
    )
    status: StatusSettings = field(default_factory=StatusSettings, metadata=made_of(StatusSettings))
    max_in_flight: int = option(
        64,
        minimum=2,
        maximum=4096,
        unit="requests",
        help="How many posts of one worker wait for one topic concurrently. Each other topic has a quarter as many "
        "slots of its own, which topics that do not answer cannot use; requests to the database have half as many. "
        "Further requests are answered 503 immediately. Too small: clients get 503 at normal load. Too large: "
        "requests exhaust the memory and wait for each other.",
    )
    auth_strategy: Literal["keystone", "noauth"] = option(
        "keystone",
        choices={
            "keystone": "tokens are validated as [keystone_authtoken] says; [oslo_policy] says who may do what",
            "noauth": "everybody may do everything, as the tenant that X-Project-Id names: for trying out only",
        },
        help="How the API authenticates callers.",
    )
    noauth_tenant: str = option("noauth", help="With noauth: the tenant of a request that names none.")
    access_log: str = option(
        "stderr",
        help="Where the access log goes, a line of JSON for each request, within half a second: stderr, the path of a "
        "file (which is opened again when it was moved away), or off.",
    )
    metrics_token: str | None = option(
        None,
        secret=True,
        help="What GET /metrics must bring at the API's own port, as Authorization: Bearer. Unset: everybody who "
        "reaches the API may read its metrics, which name no tenant. With status_port they are served there alone.",
    )
    region: str = option(
        "RegionOne", old_names=("DEFAULT.region",), help="The region of the metrics and logs that this API receives."
    )
    invalid_metrics: Literal["refuse", "drop"] = option(
        "refuse",
        choices={
            "refuse": "422, with every violation; nothing of the request is taken",
            "drop": "204: valid ones are taken, the others dead-lettered and counted in Monasca-Rejected",
        },
        help="What the API does with a request that contains invalid metrics. The agent sends a refused batch again "
        "indefinitely, so one bad metric blocks its batch unless it is dropped.",
    )
    max_body_bytes: int = option(
        5 * _MIB,
        minimum=_KIB,
        maximum=512 * _MIB,
        unit="bytes",
        help="Largest body of a request, both compressed and decompressed; a larger one is answered 413. Too small: "
        "valid batches are refused. Too large: a few requests exhaust the memory.",
    )
    publish_timeout_seconds: float = option(
        10.0,
        minimum=0.1,
        maximum=600.0,
        unit="seconds",
        unset="[kafka] publish_timeout_seconds",
        help="How long a request waits until Kafka has acknowledged all of it. Too small: clients get 503 for messages "
        "that are delivered a moment later. Too large: requests occupy workers while Kafka does not answer.",
    )
    stop_timeout_seconds: float = option(
        5.0,
        minimum=0.0,
        maximum=600.0,
        unit="seconds",
        help="How long a stop waits for Kafka's acknowledgements after the last request was answered. Too large: a "
        "stop takes long while Kafka does not answer.",
    )
    max_series_per_tenant: int = option(
        0,
        minimum=0,
        maximum=10_000_000,
        unit="series",
        help="How many series a tenant may have; a post that would add more is answered 429. A worker counts the "
        "series in the database and those that it has seen, so several workers may let a few more pass. Each series "
        "takes 100 bytes of memory in each worker. Too small: metrics of new series are refused. 0: no limit.",
    )
    metrics_topic: str = option(
        "metrics", old_names=("kafka.metrics_topic",), help="The topic to which metrics are sent."
    )
    logs_topic: str = option("log", old_names=("kafka.logs_topics",), help="The topic to which logs are sent.")
    events_topic: str = option(
        "monevents", old_names=("kafka.events_topic",), help="The topic to which events are sent."
    )
    rejected_metrics_topic: str = option(
        "metrics.dlq",
        unset="the value of metrics_topic followed by .dlq",
        help="The topic to which invalid metrics are sent with invalid_metrics=drop.",
    )
    alarm_transitions_topic: str = option(
        "alarm-state-transitions",
        old_names=("kafka.alarm_state_transitions_topic",),
        help="The topic to which changes of alarms that are made by hand are sent.",
    )

    @property
    def posted_topics(self) -> frozenset[str]:
        rejected = {self.rejected_metrics_topic} if self.invalid_metrics == "drop" else set()
        return frozenset({self.metrics_topic, self.logs_topic, self.events_topic, *rejected})


_REMOVED = {
    **REMOVED_STATUS,
    "max_gzip_ratio": "a gzip body may become 100 times larger, within max_body_bytes",
    "header_timeout_seconds": "client_header_timeout of the reverse proxy bounds a header",
    "body_timeout_seconds": "client_body_timeout of the reverse proxy bounds the pauses of a body",
    "answer_timeout_seconds": "send_timeout of the reverse proxy bounds the pauses in taking an answer",
    "max_connections": "worker_connections and limit_conn of the reverse proxy bound the connections of clients",
    "max_waiting_bytes": "the reverse proxy holds incomplete requests, in files if they are large",
    "stalled_after_seconds": "a topic counts as stalled after 5 seconds without an acknowledgement",
    "page_limit": "an answer has at most 10,000 elements; clients ask for fewer with limit",
    "max_answer_bytes": "the elements of an answer have at most 16 MiB",
}
_API = OptionGroup(API_GROUP, options_of(ApiSettings), removed=_REMOVED)


def read_configuration(files: list[str] | None, conf: cfg.ConfigOpts | None = None) -> cfg.ConfigOpts:
    """Read these files, or those in the standard locations. Raises `ConfigurationError`.

    ``conf``: where options that must be there before files are read are registered, as those of oslo.log.
    """
    conf = cfg.ConfigOpts() if conf is None else conf
    config_file.read(conf, [], project="monasca", prog="monasca-api", default_config_files=files or None)
    if not conf.config_file:
        raise ConfigurationError(
            f"no configuration file was found: name one with --config-file or in {CONFIG_FILES}, or write "
            "/etc/monasca/monasca-api.conf"
        )
    return conf


def api_settings(conf: cfg.ConfigOpts) -> ApiSettings:
    """The settings that ``[api]`` (and what it inherits from ``[kafka]``) holds. Raises `ConfigurationError`."""
    kafka = producer_settings(conf)  # also says what is wrong in [kafka], before any fork
    read = GroupReader(conf, _API)
    for group in legacy.OLD_GROUPS:
        config_file.log_old_group(conf, group)
    settings = read.settings(
        ApiSettings,
        status=read.settings(StatusSettings),
        publish_timeout_seconds=read["publish_timeout_seconds"] or kafka.publish_timeout_seconds,
        rejected_metrics_topic=read["rejected_metrics_topic"] or f"{read['metrics_topic']}.dlq",
    )
    for name in ("metrics_topic", "logs_topic", "events_topic", "rejected_metrics_topic", "alarm_transitions_topic"):
        topic = getattr(settings, name)
        if not _TOPIC.fullmatch(topic):
            raise read.error(
                name, f"is {topic!r}: name one topic, of 1 to 249 letters, digits, dots, dashes, underscores"
            )
    return settings


def list_opts() -> Sequence[tuple[str, Sequence[cfg.Opt]]]:
    """The group with its options, for oslo.config's generator of sample files."""
    return [_API.listed()]
