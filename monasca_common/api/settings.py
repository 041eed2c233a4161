# SPDX-License-Identifier: Apache-2.0
"""The settings of the API, declared as the options of ``[api]``."""

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
from monasca_common.kafka.config.schema_registry import SchemaRegistrySettings, registry_settings
from monasca_common.kafka.errors import ConfigurationError
from monasca_common.models.limits import RESOURCE_ATTRIBUTES
from monasca_common.runtime.envelopes import FORMATS
from monasca_common.runtime.settings import REMOVED_STATUS, StatusSettings

API_GROUP = "api"
CONFIG_FILES = "MONASCA_API_CONFIG_FILES"  # the environment variable for servers that our command does not start

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
        help="Number of processes that serve requests; use one per free core. Too small: requests wait. Too large: "
        "processes compete for cores, and each process needs memory and connections.",
    )
    status: StatusSettings = field(default_factory=StatusSettings, metadata=made_of(StatusSettings))
    max_in_flight: int = option(
        64,
        minimum=2,
        maximum=4096,
        unit="requests",
        help="Maximum number of concurrent posts per worker to one topic. A quarter of this number is reserved for "
        "each topic, and other topics that are stalled cannot use it. At most half this number of requests may use the "
        "database at a time. Further requests get status 503 immediately. Too small: clients get status 503 at normal "
        "load. Too large: requests exhaust the memory and wait for each other.",
    )
    auth_strategy: Literal["keystone", "noauth"] = option(
        "keystone",
        choices={
            "keystone": "tokens are validated with [keystone_authtoken], and roles are checked with [oslo_policy]",
            "noauth": "every request is permitted, for the tenant in X-Project-Id; use it only for trials",
        },
        help="How the API authenticates callers.",
    )
    noauth_tenant: str = option("noauth", help="With noauth, the tenant of requests that name no tenant.")
    trust_scope_header: bool = option(
        False,
        help="Whether the header X-Scope-OrgID of a request to /api/v1/write, /v1/metrics or /v1/logs names its "
        "tenant, without a token. Set it only if every client has to pass a proxy that authenticates it and sets or "
        "removes this header; otherwise every client can write for every tenant.",
    )
    access_log: str = option(
        "stderr",
        help="Destination of the access log: stderr, the path of a file (reopened after a rotation), or off. The "
        "access log has a line of JSON per request, written within half a second.",
    )
    region: str = option(
        "RegionOne", old_names=("DEFAULT.region",), help="The region of the metrics and logs that this API receives."
    )
    invalid_metrics: Literal["refuse", "drop"] = option(
        "refuse",
        choices={
            "refuse": "the request gets status 422 with all violations, and no metric is accepted",
            "drop": "valid metrics are accepted (204); invalid ones become dead letters, counted in Monasca-Rejected",
        },
        help="How the API handles a request that contains invalid metrics. The agent repeats a refused batch "
        "indefinitely, so one invalid metric blocks its batch unless invalid metrics are dropped.",
    )
    max_body_bytes: int = option(
        5 * _MIB,
        minimum=_KIB,
        maximum=512 * _MIB,
        unit="bytes",
        help="Maximum size of a request's body in bytes, both compressed and decompressed; a larger body gets status "
        "413. Too small: valid batches are refused. Too large: a few requests exhaust the memory.",
    )
    publish_timeout_seconds: float = option(
        10.0,
        minimum=0.1,
        maximum=600.0,
        unit="seconds",
        unset="[kafka] publish_timeout_seconds",
        help="Seconds to wait until Kafka has acknowledged all messages of a request. Too small: clients get 503 for "
        "messages that are delivered later. Too large: requests occupy workers while Kafka does not respond.",
    )
    stop_timeout_seconds: float = option(
        5.0,
        minimum=0.0,
        maximum=600.0,
        unit="seconds",
        help="Seconds to wait for Kafka's acknowledgements when the API stops. Too small: more messages of requests "
        "that got status 503 are not delivered. Too large: a stop takes a long time while Kafka does not respond.",
    )
    max_series_per_tenant: int = option(
        0,
        minimum=0,
        maximum=10_000_000,
        unit="series",
        help="Maximum number of series per tenant; a post that exceeds it gets status 429. A worker counts the series "
        "in the database and in its own posts, so several workers may exceed the limit slightly. Each series takes 100 "
        "bytes of memory in each worker. Too small: metrics of new series are refused; if a tenant already has more "
        "series, also metrics of some of these. 0: no limit.",
    )
    otlp_attributes: tuple[str, ...] = option(
        RESOURCE_ATTRIBUTES,
        help="The attributes of OTLP resources and scopes that become dimensions, separated by commas; "
        "otel.scope.name and otel.scope.version are also permitted. Too few: series of different senders have the same "
        "dimensions and overwrite each other. Too many: each restart of a sender creates new series.",
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
    metrics_format: str = option("json", choices=FORMATS, help="Format of metric messages in Kafka.")
    logs_format: str = option("json", choices=FORMATS, help="Format of log messages in Kafka.")
    events_format: str = option("json", choices=FORMATS, help="Format of event messages in Kafka.")
    transitions_format: str = option(
        "json", choices=FORMATS, help="Format of the Kafka messages for alarm transitions that clients request."
    )
    alarm_transitions_topic: str = option(
        "alarm-state-transitions",
        old_names=("kafka.alarm_state_transitions_topic",),
        help="The topic to which alarm transitions set by clients are sent.",
    )

    registry: SchemaRegistrySettings | None = None  # used only if a format is avro

    @property
    def posted_topics(self) -> frozenset[str]:
        rejected = {self.rejected_metrics_topic} if self.invalid_metrics == "drop" else set()
        return frozenset({self.metrics_topic, self.logs_topic, self.events_topic, *rejected})


_REMOVED = {
    **REMOVED_STATUS,
    "max_gzip_ratio": "a gzip body may expand to 100 times its size, within max_body_bytes",
    "header_timeout_seconds": "client_header_timeout of the reverse proxy bounds a header",
    "body_timeout_seconds": "client_body_timeout of the reverse proxy bounds the pauses of a body",
    "answer_timeout_seconds": "send_timeout of the reverse proxy bounds the pauses in reading a response",
    "max_connections": "worker_connections and limit_conn of the reverse proxy bound the connections of clients",
    "max_waiting_bytes": "the reverse proxy buffers incomplete requests, in files if they are large",
    "stalled_after_seconds": "a topic counts as stalled after 5 seconds without an acknowledgement",
    "page_limit": "a response has at most 10,000 elements; clients can request fewer with the parameter limit",
    "metrics_token": "set status_port, or block /metrics in the proxy",  # nosec B105
    "max_answer_bytes": "the elements of a response have at most 16 MiB in total",
}
_API = OptionGroup(API_GROUP, options_of(ApiSettings), removed=_REMOVED)


def read_configuration(files: list[str] | None, conf: cfg.ConfigOpts | None = None) -> cfg.ConfigOpts:
    """Read these configuration files, by default those in the standard locations. Raises `ConfigurationError`.

    ``conf``: contains options that must be registered before files are read, such as those of oslo.log.
    """
    conf = cfg.ConfigOpts() if conf is None else conf
    config_file.read(conf, [], project="monasca", prog="monasca-api", default_config_files=files or None)
    if not conf.config_file:
        raise ConfigurationError(
            f"no configuration file was found: name one with --config-file or in {CONFIG_FILES}, or create "
            "/etc/monasca/monasca-api.conf"
        )
    return conf


def api_settings(conf: cfg.ConfigOpts) -> ApiSettings:
    """Return the settings of ``[api]``; some defaults come from ``[kafka]``. Raises `ConfigurationError`."""
    kafka = producer_settings(conf)  # this reports errors in [kafka] before the workers are forked
    read = GroupReader(conf, _API)
    for group in legacy.OLD_GROUPS:
        config_file.log_old_group(conf, group)
    formats = {read[f"{kind}_format"] for kind in ("metrics", "logs", "events", "transitions")}
    settings = read.settings(
        ApiSettings,
        status=read.settings(StatusSettings),
        publish_timeout_seconds=read["publish_timeout_seconds"] or kafka.publish_timeout_seconds,
        rejected_metrics_topic=read["rejected_metrics_topic"] or f"{read['metrics_topic']}.dlq",
        registry=registry_settings(conf) if "avro" in formats else None,
    )
    for name in ("metrics_topic", "logs_topic", "events_topic", "rejected_metrics_topic", "alarm_transitions_topic"):
        topic = getattr(settings, name)
        if not _TOPIC.fullmatch(topic):
            raise read.error(
                name, f"is {topic!r}: name one topic, of 1 to 249 letters, digits, dots, dashes or underscores"
            )
    return settings


def list_opts() -> Sequence[tuple[str, Sequence[cfg.Opt]]]:
    """Return the group with its options, for oslo.config's sample generator."""
    return [_API.listed()]
