# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from oslotest import base

from monasca_common.kafka.errors import SerializationError
from monasca_common.kafka.serialization.raw import RawSerializer


class RawTest(base.BaseTestCase):
    def test_bytes_pass_as_they_are(self):
        raw = RawSerializer()

        self.assertEqual(b"\x00\xff", raw.loads(raw.dumps(b"\x00\xff")))
        self.assertEqual(b"ab", raw.dumps(memoryview(b"ab")))
        self.assertEqual((("content-type", b"application/octet-stream"),), raw.headers)

    def test_only_bytes_are_written(self):
        error = self.assertRaises(SerializationError, RawSerializer().dumps, "sesame")

        self.assertNotIn("sesame", str(error))
