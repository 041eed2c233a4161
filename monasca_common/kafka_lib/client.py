# SPDX-License-Identifier: Apache-2.0
"""`KafkaClient`: reads topics and end offsets, for monasca-api's health check and monasca-agent's consumer check. New
code should use `monasca_common.kafka.load_admin`, which also accepts credentials."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from monasca_common import kafka
from monasca_common.kafka import ClosedError, MisuseError, TopicPartition
from monasca_common.kafka.config import configuration
from monasca_common.kafka_lib.common import (
    KafkaUnavailableError,
    LeaderNotAvailableError,
    OffsetRequest,
    OffsetResponse,
    UnknownTopicOrPartitionError,
)

if TYPE_CHECKING:
    from monasca_common.kafka import Admin

__all__ = ["KafkaClient", "KafkaUnavailableError", "LeaderNotAvailableError", "UnknownTopicOrPartitionError"]

_END = -1
_OLDEST = -2


class KafkaClient:
    """Holds the topics that the cluster had when the client was opened, and reads current offsets. Topic names are
    bytes."""

    def __init__(
        self, hosts: str | Sequence[str], client_id: str | bytes = "monasca-common", timeout: float = 10.0
    ) -> None:
        """``hosts``: ``host:port`` entries, as a list or separated by commas. The topics are requested immediately,
        because callers rely on `KafkaUnavailableError` if there is no response within ``timeout`` seconds."""
        brokers = [host.strip() for host in (hosts.split(",") if isinstance(hosts, str) else hosts)]
        servers = configuration.bootstrap_servers(brokers, where="the hosts of KafkaClient")
        options = {"bootstrap.servers": servers, "client.id": _text(client_id)}
        self._timeout = timeout
        self._admin: Admin | None = kafka.Admin(options)
        self._partitions = self._admin.partition_counts(timeout)

    @property
    def topics(self) -> list[bytes]:
        return [topic.encode() for topic in self._partitions]

    def get_partition_ids_for_topic(self, topic: str | bytes) -> list[int]:
        """Return the partitions of a topic, or an empty list if it does not exist."""
        return list(range(self._partitions.get(_text(topic), 0)))

    def send_offset_request(self, payloads: Sequence[OffsetRequest]) -> list[OffsetResponse]:
        """Return the offset for each payload, in order. Raises `KafkaUnavailableError` if an offset is not available,
        and `MisuseError` for a ``time`` other than -1 and -2."""
        unknown = sorted({payload.time for payload in payloads} - {_END, _OLDEST})
        if unknown:
            raise MisuseError(
                f"time {unknown} of an OffsetRequest: use {_END} (the end) or {_OLDEST} (the oldest record)"
            )
        admin = self._open()
        found: dict[int, Mapping[TopicPartition, int]] = {
            _END: admin.end_offsets(_partitions(payloads, _END), self._timeout),
            _OLDEST: admin.first_offsets(_partitions(payloads, _OLDEST), self._timeout),
        }
        return [
            OffsetResponse(each.topic, each.partition, 0, (found[each.time][_partition(each)],)) for each in payloads
        ]

    def committed_offsets(self, group: str, topic: str) -> dict[int, int]:
        """Return the next offset of each partition of ``topic`` for ``group``, or 0 if the group has not committed
        one."""
        partitions = self.get_partition_ids_for_topic(topic)
        if not partitions:
            raise UnknownTopicOrPartitionError(
                f"topic {topic!r} does not exist: create it, or correct its name",
                code=3,
                name="UNKNOWN_TOPIC_OR_PART",
            )
        committed = self._open().group_offsets(group, self._timeout)
        return {partition: committed.get(TopicPartition(topic, partition), 0) for partition in partitions}

    def close(self) -> None:
        """Close the connections; a second call has no effect."""
        self._admin = None

    def _open(self) -> Admin:
        if self._admin is None:
            raise ClosedError("KafkaClient was closed: open another")
        return self._admin


def _partitions(payloads: Sequence[OffsetRequest], time: int) -> list[TopicPartition]:
    return [_partition(payload) for payload in payloads if payload.time == time]


def _partition(payload: OffsetRequest) -> TopicPartition:
    return TopicPartition(_text(payload.topic), payload.partition)


def _text(name: str | bytes) -> str:
    return name.decode() if isinstance(name, bytes) else name
