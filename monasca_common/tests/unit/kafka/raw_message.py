# SPDX-License-Identifier: Apache-2.0
"""A message with the methods of confluent-kafka's messages, or an error in its place."""

from __future__ import annotations

from typing import Any

from monasca_common.kafka.message import TopicPartition


class FakeMessage:
    def __init__(self, topic: str, partition: int, value: bytes | None = None, offset: int | None = None) -> None:
        self._topic = topic
        self._partition = partition
        self._value = value
        self._offset = offset
        self._error: Any = None

    @classmethod
    def about(cls, partition: TopicPartition, error: Any, offset: int | None = None) -> FakeMessage:
        """Return an element of a poll that has an error and no message."""
        message = cls(*partition, None, offset)
        message._error = error
        return message

    def error(self) -> Any:
        return self._error

    def topic(self) -> str:
        return self._topic

    def partition(self) -> int:
        return self._partition

    def offset(self) -> int | None:
        return self._offset

    def key(self) -> None:
        return None

    def value(self) -> bytes | None:
        return self._value

    def headers(self) -> None:
        return None

    def timestamp(self) -> tuple[int, int]:
        return 0, 0
