# SPDX-License-Identifier: Apache-2.0
import struct

from oslotest import base

from monasca_common.devbroker.framing import ApiKey, correlation_id, frame_length, parse_request


def text(value):
    return struct.pack(">h", len(value)) + value


def header(api_key, version, correlation=7):
    return struct.pack(">hhi", api_key, version, correlation) + text(b"client")


def produce(version, acks, transactional_id=None):
    """The beginning of a produce request, as far as its acks."""
    frame = header(ApiKey.PRODUCE, version)
    if version >= 9:
        length = 0 if transactional_id is None else len(transactional_id) + 1
        size = bytes([length]) if length < 128 else bytes([length & 0x7F | 0x80, length >> 7])
        frame += b"\0" + size + (transactional_id or b"")
    elif version >= 3:
        frame += struct.pack(">h", -1) if transactional_id is None else text(transactional_id)
    return parse_request(1, frame + struct.pack(">hi", acks, 30_000))


class TestRequest(base.BaseTestCase):
    def test_the_header_is_read(self):
        request = parse_request(2, header(ApiKey.END_TXN, 3, correlation=99))
        found = (request.node, request.api_key, request.api_version, request.correlation_id)
        self.assertEqual((2, ApiKey.END_TXN, 3, 99), found)

    def test_only_produce_with_acks_0_expects_no_answer(self):
        for version in (2, 3, 8, 9, 12):
            for transactional_id in (None, b"tx", b"t" * 200):
                self.assertFalse(produce(version, 0, transactional_id).expects_answer)
                self.assertTrue(produce(version, 1, transactional_id).expects_answer)
                self.assertTrue(produce(version, -1, transactional_id).expects_answer)
        self.assertTrue(parse_request(1, header(ApiKey.FETCH, 12)).expects_answer)

    def test_a_client_without_a_name_is_read_as_well(self):
        frame = struct.pack(">hhih", ApiKey.PRODUCE, 3, 1, -1) + struct.pack(">hh", -1, 0)
        self.assertFalse(parse_request(1, frame).expects_answer)

    def test_what_is_shorter_than_a_header_is_no_request(self):
        self.assertRaises(ValueError, parse_request, 1, b"\0\0\0")


class TestFrames(base.BaseTestCase):
    def test_an_answer_begins_with_the_id_of_its_request(self):
        self.assertEqual(41, correlation_id(struct.pack(">i", 41) + b"rest"))

    def test_a_length_is_four_bytes(self):
        self.assertEqual(1 << 20, frame_length(struct.pack(">i", 1 << 20)))

    def test_a_negative_length_is_not_kafkas_protocol(self):
        self.assertRaises(ValueError, frame_length, b"\x80\0\0\0")
