# SPDX-License-Identifier: Apache-2.0
"""The interface of serializers, and the serializer of bytes."""

from __future__ import annotations

from typing import Any, ClassVar

from oslotest import base

from monasca_common.kafka import Record, SerializationContext, Serializer
from monasca_common.kafka.errors import RetryLater, SerializationError
from monasca_common.kafka.serialization.base import RawSerializer


class ContextSerializer(Serializer):
    """Keeps the contexts of its calls. Its value ``b"later"`` needs a service that is unavailable."""

    content_type: ClassVar[str] = "text/plain"

    def __init__(self) -> None:
        self.contexts: list[SerializationContext | None] = []
        self.is_available = False

    def dumps(self, value: Any, context: SerializationContext | None = None) -> bytes:
        self.contexts.append(context)
        return bytes(value)

    def loads(self, value: bytes, context: SerializationContext | None = None) -> Any:
        self.contexts.append(context)
        if value == b"later" and not self.is_available:
            raise RetryLater(7.0)
        return value


class RecordTest(base.BaseTestCase):
    def test_a_serializer_with_a_context_receives_the_topic_and_the_headers(self):
        serializer = ContextSerializer()

        record = serializer.record("readings", b"21", key=b"hall", headers=(("a", b"b"),))

        headers = (("content-type", b"text/plain"), ("a", b"b"))
        self.assertEqual(Record(b"21", key=b"hall", headers=headers), record)
        self.assertEqual([SerializationContext("readings", "value", headers)], serializer.contexts)

    def test_a_serializer_without_a_context_writes_records(self):
        self.assertEqual(Record(b"21", headers=RawSerializer().headers), RawSerializer().record("readings", b"21"))


class RawTest(base.BaseTestCase):
    def test_bytes_are_unchanged(self):
        raw = RawSerializer()

        self.assertEqual(b"\x00\xff", raw.loads(raw.dumps(b"\x00\xff")))
        self.assertEqual(b"ab", raw.dumps(memoryview(b"ab")))
        self.assertEqual((("content-type", b"application/octet-stream"),), raw.headers)

    def test_only_bytes_are_written(self):
        error = self.assertRaises(SerializationError, RawSerializer().dumps, "sesame")

        self.assertNotIn("sesame", str(error))
