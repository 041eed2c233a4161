# SPDX-License-Identifier: Apache-2.0
"""The option names that configuration files must not contain, because a constant or another option decides.

`config_file` refuses them. A name of ``[kafka]`` is also refused in the group of a consumer.
"""

from __future__ import annotations

from collections.abc import Mapping

from monasca_common.kafka.config.legacy import Fate, OldGroup, OldOption
from monasca_common.kafka.config.oslo_options import KAFKA_GROUP

_LIVE = "a loop of the service may take 600 seconds for a turn"


def _group(name: str, **decisions: str) -> OldGroup:
    """Return the group with its removed options, each with what decides."""
    return OldGroup(name, None, tuple(OldOption(each, Fate.REFUSED, note) for each, note in decisions.items()))


OLD_GROUPS: tuple[OldGroup, ...] = (
    _group(
        KAFKA_GROUP,
        isolation_level="consumers read what is committed",
        max_uncommitted_messages="a partition with 100,000 offsets that are read and not committed is paused",
    ),
    _group(
        "api",
        status_live_seconds=_LIVE,
        max_gzip_ratio="a gzip body may become 100 times larger, within max_body_bytes",
        header_timeout_seconds="client_header_timeout of the reverse proxy bounds a header",
        body_timeout_seconds="client_body_timeout of the reverse proxy bounds the pauses of a body",
        answer_timeout_seconds="send_timeout of the reverse proxy bounds the pauses in taking an answer",
        max_connections="worker_connections and limit_conn of the reverse proxy bound the connections of clients",
        max_waiting_bytes="the reverse proxy holds incomplete requests, in files if they are large",
        stalled_after_seconds="a topic counts as stalled after 5 seconds without an acknowledgement",
        page_limit="an answer has at most 10,000 elements; clients ask for fewer with limit",
        max_answer_bytes="the elements of an answer have at most 16 MiB",
    ),
    _group(
        "notification",
        status_live_seconds=_LIVE,
        connect_timeout_seconds="connecting to an address of a receiver may take 3 seconds",
        read_timeout_seconds="timeout in the group of each notifier bounds an attempt",
        max_response_bytes="8192 bytes of an answer are read",
    ),
    _group(
        "alarm_processor",
        max_at_one_method="8 notifications are sent to one method concurrently",
        max_at_one_destination="16 notifications are sent to one host concurrently",
    ),
    _group(
        "retry_engine",
        max_interval="two attempts are at most 600 seconds apart, or interval",
        number="32 threads send retries, and 32 periodic notifications",
    ),
    _group("audit_count", status_live_seconds=_LIVE),
    _group("lag", status_live_seconds=_LIVE, read_seconds="a survey reads for at most 60 seconds"),
    _group(
        "audit",
        status_live_seconds=_LIVE,
        report_seconds="reports are sent every 10 seconds, or more often if grace_seconds is below ten minutes",
        balance_seconds="audit serve reconciles the reports once a minute",
    ),
    _group(
        "dashboard",
        status_live_seconds=_LIVE,
        source_timeout_seconds="a panel waits 30 seconds for its source",
        lag_window_seconds="window_seconds in group [lag] counts for the dashboard too",
        api_timeout_seconds="a page waits 10 seconds for the API",
    ),
    _group(
        "mirror",
        status_live_seconds=_LIVE,
        batch_size="a transaction copies at most 5000 messages",
        topic_refresh_seconds="the mirror looks for new topics once a minute",
    ),
    _group(
        "persister",
        status_live_seconds=_LIVE,
        max_consecutive_dead_letters="10,000 dead letters in a row stop a consumer until a restart",
    ),
    _group("pipeline_archive", compact_to_mb="the job compact merges files to 128 MB"),
    _group("storage", max_results="one read returns at most 100,000 rows"),
)

_BY_GROUP: Mapping[str, Mapping[str, str]] = {
    group.name: {old.name: old.note for old in group.options} for group in OLD_GROUPS
}


def decisions(group: str, *, of_consumer: bool = False) -> Mapping[str, str]:
    """Return what decides, by name, for each name that ``[<group>]`` must not contain. ``of_consumer``: it has the
    options of a consumer, so a name that ``[kafka]`` must not contain is refused too."""
    of_kafka = _BY_GROUP.get(KAFKA_GROUP, {}) if of_consumer else {}
    return {**of_kafka, **_BY_GROUP.get(group, {})}
