# SPDX-License-Identifier: Apache-2.0
"""Untrusted JSON: accepted values keep their meaning, and refused values are never quoted."""

from __future__ import annotations

import enum
import json
import string
import traceback
import uuid

from hypothesis import given
from hypothesis import strategies as st
from oslotest import base

from monasca_common.kafka.errors import SerializationError
from monasca_common.kafka.serialization.json import JsonSerializer

TEXT = st.text(
    alphabet=st.sampled_from(':"\\{}[],09ae \u00e9\u20ac\U0001f600') | st.characters(exclude_categories=["Cs"])
)
NUMBERS = st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXT,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(TEXT, inner, max_size=5),
    max_leaves=30,
)


class Colour(enum.Enum):
    RED = "red"


class JsonTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.serializer = JsonSerializer()

    def refusal(self, data: bytes) -> str:
        error = self.assertRaises(SerializationError, self.serializer.loads, data)
        self.assertIsNone(error.__cause__)
        self.assertIsNone(error.__context__)
        return str(error)

    def test_the_content_type_is_reported_in_a_header(self):
        self.assertEqual((("content-type", b"application/json"),), self.serializer.headers)

    @given(VALUES)
    def test_written_values_are_read_back(self, value):
        self.assertEqual(value, self.serializer.loads(self.serializer.dumps(value)))

    @given(VALUES, st.booleans())
    def test_values_of_other_writers_are_read(self, value, ascii_only):
        self.assertEqual(value, self.serializer.loads(json.dumps(value, ensure_ascii=ascii_only).encode()))

    def test_none_and_the_text_null_do_not_change_which_values_are_written(self):
        number = uuid.UUID(int=1)
        for other in (1, None, "null"):
            value = {"id": number, "colour": Colour.RED, "other": other}
            written = {"id": str(number), "colour": "red", "other": other}
            self.assertEqual(written, self.serializer.loads(self.serializer.dumps(value)))

    def test_the_last_of_repeated_keys_is_used(self):
        self.assertEqual({"a": {"a": 2}}, self.serializer.loads(b'{"a":1,"a":{"a":1,"\\u0061":2}}'))

    @given(st.integers())
    def test_an_integer_is_read_exactly(self, number):
        for factor in (1, 2**70):
            self.assertEqual(number * factor, self.serializer.loads(str(number * factor).encode()))

    def test_an_integer_of_thousands_of_digits_is_refused(self):
        self.refusal(b"9" * 100_000)

    def test_long_numbers_in_strings_and_fractions_are_accepted(self):
        for value in ("1" * 40, 0.1234567890123456789):
            self.assertEqual(value, self.serializer.loads(json.dumps(value).encode()))
        self.assertEqual(1 / 3, self.serializer.loads(b"0.33333333333333333333333333333333"))

    def test_numbers_that_json_does_not_have_are_refused(self):
        for text in (b"NaN", b"[Infinity]", b"-Infinity", b"1e999", b"01", b"+1", b".5"):
            self.assertIn("not JSON", self.refusal(text))

    def test_lone_surrogates_and_broken_text_are_refused(self):
        for text in (b'"\\ud800"', b'"\\udc00x"', b'{"\\ud800":1}', b'"\xff"', b'"\xed\xa0\x80"'):
            self.assertIn("not JSON", self.refusal(text))

    def test_a_value_nested_too_deeply_is_refused(self):
        for opening, closing in ((b"[", b"]"), (b'{"a":', b"}")):
            self.assertIsNotNone(self.serializer.loads(opening * 64 + b"1" + closing * 64))
            self.refusal(opening * 100_000 + b"1" + closing * 100_000)
        deep: list = []
        for _ in range(1000):
            deep = [deep]
        self.assertRaises(SerializationError, self.serializer.dumps, deep)

    @given(st.binary(max_size=60) | st.text(alphabet='{}[]":,\\u0123eE.-+tfn', max_size=60).map(str.encode))
    def test_any_bytes_are_read_as_the_standard_library_reads_them_or_refused(self, data):
        try:
            value = self.serializer.loads(data)
        except SerializationError:
            return
        self.assertEqual(json.loads(data), value)

    def test_no_payload_is_quoted(self):
        for data in (b'{"sesame":', b'["sesame", NaN]', b'"sesame\\ud800"', b"sesame"):
            error = self.assertRaises(SerializationError, self.serializer.loads, data)
            self.assertNotIn("sesame", "".join(traceback.format_exception(error)))
            self.assertFalse(hasattr(error, "doc"))

    def test_values_that_json_does_not_have_are_not_written(self):
        for value in ({1: 2}, {"a": {1}}, 2**64, "\ud800", float("nan"), [None, float("inf")], {"a": (float("nan"),)}):
            self.assertRaises(SerializationError, self.serializer.dumps, value)
        error = self.assertRaises(SerializationError, self.serializer.dumps, float("nan"))
        self.assertIn("neither NaN nor Infinity: use None", str(error))

    def test_none_is_encoded_as_null(self):
        self.assertEqual(b'{"a":null,"b":[1.5]}', self.serializer.dumps({"a": None, "b": [1.5]}))

    def test_every_printable_character_survives(self):
        self.assertEqual(string.printable, self.serializer.loads(self.serializer.dumps(string.printable)))
