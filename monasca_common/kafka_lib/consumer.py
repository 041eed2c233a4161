# SPDX-License-Identifier: Apache-2.0
"""`SimpleConsumer`: the committed offsets of a group, for the consumer check of monasca-agent."""

from __future__ import annotations

from typing import NoReturn

from monasca_common.kafka import MisuseError
from monasca_common.kafka_lib.client import KafkaClient


class SimpleConsumer:
    """``offsets`` is ``{partition: next offset}``, or 0 if the group has not committed one. It reads no messages.

    Raises `UnknownTopicOrPartitionError` for a topic that does not exist, and `MisuseError` for ``auto_commit``.
    """

    def __init__(self, client: KafkaClient, group: str, topic: str, *, auto_commit: bool = True) -> None:
        if auto_commit:
            _refuse("commits nothing: pass auto_commit=False")
        self._client = client
        self._group = group
        self._topic = topic
        self.offsets: dict[int, int] = {}
        self.fetch_last_known_offsets()

    def fetch_last_known_offsets(self) -> None:
        """Update `offsets`."""
        self.offsets = self._client.committed_offsets(self._group, self._topic)

    def stop(self) -> None:
        """Do nothing: the owner of the client closes it."""

    def __iter__(self) -> NoReturn:
        _refuse("reads no messages")

    def get_message(self, *_: object, **__: object) -> NoReturn:
        """Raise `MisuseError`, because this class reads no messages."""
        _refuse("reads no messages")

    get_messages = get_message


def _refuse(why: str) -> NoReturn:
    raise MisuseError(
        f"SimpleConsumer {why}: to read messages, call get_kafka_consumer of monasca_common.kafka.client_factory"
    )
