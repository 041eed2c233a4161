# SPDX-License-Identifier: Apache-2.0
"""Dataclasses and structs as JSON: checked on both sides, and never quoted in an error."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import traceback
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from oslotest import base

from monasca_common.kafka.errors import ConfigurationError, SerializationError
from monasca_common.kafka.serialization.msgspec import MsgspecSerializer


class Place(enum.Enum):
    HALL = "hall"


@dataclasses.dataclass
class Reading:
    celsius: float
    at: datetime.datetime | None = None
    place: Place = Place.HALL
    tags: dict[int, str] = dataclasses.field(default_factory=dict)


class Limit(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    celsius: float | None

    def __post_init__(self) -> None:
        if self.celsius == -300:
            raise ValueError(f"{self.celsius} is below absolute zero")


class Silence(msgspec.Struct, frozen=True, tag=True):
    minutes: int


READINGS = st.builds(
    Reading,
    celsius=st.floats(allow_nan=False, allow_infinity=False),
    at=st.none() | st.datetimes(timezones=st.just(datetime.UTC)),
    tags=st.dictionaries(st.integers(0, 9), st.text(max_size=5), max_size=3),
)


class MsgspecTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.serializer = MsgspecSerializer(type=Reading)

    def refusal(self, function: Any, value: Any) -> str:
        error = self.assertRaises(SerializationError, function, value)
        self.assertIsNone(error.__cause__)
        self.assertIsNone(error.__context__)
        return "".join(traceback.format_exception(error))

    @given(READINGS)
    def test_a_dataclass_is_read_back_equal(self, reading):
        self.assertEqual(reading, self.serializer.loads(self.serializer.dumps(reading)))

    def test_a_union_of_structs_is_read_back_by_tag(self):
        serializer = MsgspecSerializer(type=Limit | Silence)

        for value in (Limit(21.5), Silence(5)):
            self.assertEqual(value, serializer.loads(serializer.dumps(value)))

    def test_the_content_type_is_json(self):
        self.assertEqual((("content-type", b"application/json"),), self.serializer.headers)
        self.assertEqual({"celsius": 1.0}, msgspec.json.decode(MsgspecSerializer(type=dict).dumps({"celsius": 1.0})))

    def test_values_of_another_type_are_not_written(self):
        for value in (Reading("warm"), Silence(5), object(), Reading(float("nan")), Reading(1.0, tags={1: object()})):
            self.refusal(self.serializer.dumps, value)
        self.refusal(MsgspecSerializer(type=Limit).dumps, Limit(float("inf")))  # msgspec by itself writes null

    def test_a_reason_names_the_field(self):
        self.assertIn("Expected `float`, got `str` - at `$.celsius`", self.refusal(self.serializer.dumps, Reading("x")))
        self.assertIn("missing required field `celsius`", self.refusal(self.serializer.loads, b"{}"))
        self.assertIn("invalid at $.place", self.refusal(self.serializer.loads, b'{"celsius":1,"place":"roof"}'))

    def test_the_rules_of_json_hold(self):
        deep = b'{"celsius":1,"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
        for data in (b'{"celsius":NaN}', b'{"celsius":1', b"\xff", b"", deep):
            self.assertIn("JSON", self.refusal(self.serializer.loads, data))

    def test_no_payload_is_quoted(self):
        limits = MsgspecSerializer(type=Limit | Silence)
        for serializer, data in (
            (self.serializer, b'{"celsius":"sesame"}'),
            (self.serializer, b'{"celsius":1,"place":"sesame"}'),
            (self.serializer, b'{"celsius":1,"place":"x - at `$.sesame`"}'),
            (self.serializer, b'{"celsius":1,"at":"sesame"}'),
            (self.serializer, b'{"celsius":1,"tags":{"sesame":"x"}}'),
            (limits, b'{"type":"sesame"}'),
            (limits, b'{"type":"Limit","celsius":1,"sesame":1}'),
        ):
            self.assertNotIn("sesame", self.refusal(serializer.loads, data))
        self.assertNotIn("300", self.refusal(limits.loads, b'{"type":"Limit","celsius":-300}').split("Error:")[-1])

    def test_a_type_that_msgspec_does_not_support_is_refused(self):
        self.assertRaises(ConfigurationError, MsgspecSerializer, type=lambda: 1)
