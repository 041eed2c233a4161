# SPDX-License-Identifier: Apache-2.0
"""The options of the old Monasca services and their replacements, so that old configuration files work unchanged."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Action(enum.Enum):
    RENAMED = "renamed"  # the old name still works; oslo.config logs the current name
    SERVICE = "read by the service"
    IGNORED = "ignored"


@dataclass(frozen=True, slots=True)
class OldOption:
    """An old option. ``consumers``: it also exists in groups like ``[kafka_metrics]``. ``note``: its new name, its use,
    or the reason why it is ignored."""

    name: str
    action: Action
    note: str
    consumers: bool = False


@dataclass(frozen=True, slots=True)
class OldGroup:
    """A group in old files. ``note``: the text to log, or ``None`` if other services have options in the group.

    ``options``: the options with their own notes. The service reads an option with `Action.SERVICE` itself.
    """

    name: str
    note: str | None
    options: tuple[OldOption, ...] = ()


_ZOOKEEPER = "groups share partitions through the brokers, not through ZooKeeper"
_BUFFERS = "the option was a default of kafka-python; buffer_bytes limits the bytes that are fetched ahead"
_NEVER_USED = "the option never had an effect"
_ALWAYS_ACKNOWLEDGED = "every message is acknowledged by all replicas, and publish_timeout_seconds limits the wait"

OLD_OPTIONS = (
    OldOption("uri", Action.RENAMED, "bootstrap_servers", consumers=True),
    OldOption("url", Action.RENAMED, "bootstrap_servers", consumers=True),
    OldOption("database_batch_size", Action.RENAMED, "batch_size", consumers=True),
    OldOption("group", Action.RENAMED, "group_id in [kafka_notifications]"),
    OldOption("alarm_topic", Action.RENAMED, "topic in [kafka_notifications]"),
    OldOption("notification_retry_topic", Action.IGNORED, "retries are stored in the database"),
    OldOption("enabled", Action.SERVICE, "whether the persister runs this consumer", consumers=True),
    OldOption("num_processors", Action.SERVICE, "how many processes the persister starts", consumers=True),
    OldOption("metrics_topic", Action.SERVICE, "where the API sends metrics"),
    OldOption("events_topic", Action.SERVICE, "where the API sends events"),
    OldOption("logs_topics", Action.SERVICE, "where the API sends logs"),
    OldOption("alarm_state_transitions_topic", Action.SERVICE, "where alarm transitions are sent"),
    OldOption("notification_topic", Action.IGNORED, "GET /v2.0/notifications returns notifications"),
    OldOption("periodic", Action.IGNORED, "periodic notifications are stored in the database"),
    *(OldOption(name, Action.IGNORED, _ZOOKEEPER, consumers=True) for name in ("zookeeper_path", "path", "partitions")),
    *(
        OldOption(name, Action.IGNORED, _BUFFERS, consumers=True)
        for name in ("fetch_size_bytes", "buffer_size", "max_buffer_size")
    ),
    OldOption("consumer_id", Action.IGNORED, "the brokers identify members; see group_instance_id", consumers=True),
    OldOption(
        "ignore_parse_point_error",
        Action.IGNORED,
        "the option was in [repositories], where it is also ignored",
        consumers=True,
    ),
    OldOption("legacy_kafka_client_enabled", Action.IGNORED, "the client with ZooKeeper was removed", consumers=True),
    OldOption("max_offset_lag", Action.IGNORED, "nothing is skipped silently; to skip, reset the offsets of the group"),
    *(OldOption(name, Action.IGNORED, _NEVER_USED) for name in ("async", "is_async", "compact", "wait_time")),
    OldOption("auto_commit", Action.IGNORED, "offsets are committed after their messages are handled"),
    *(OldOption(name, Action.IGNORED, _ALWAYS_ACKNOWLEDGED) for name in ("ack_time", "max_retry")),
    OldOption("drop_data", Action.IGNORED, "data is never dropped; tests use driver = memory"),
    OldOption("queue_buffering_max_messages", Action.IGNORED, "see budget_messages"),
)

OLD_GROUPS = (
    OldGroup(
        "DEFAULT",
        None,
        (OldOption("verbose", Action.IGNORED, "oslo.log has no such option; see debug"),),
    ),
    OldGroup("zookeeper", f"{_ZOOKEEPER}; remove the group"),
    OldGroup("kafka_periodic_notifications", "periodic notifications are stored in the database; remove the group"),
    OldGroup("kafka_retry_notifications", "retries are stored in the database; remove the group"),
)
