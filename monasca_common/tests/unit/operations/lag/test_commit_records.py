# SPDX-License-Identifier: Apache-2.0
import struct

from hypothesis import given
from hypothesis import strategies as st
from oslotest import base

from monasca_common.kafka.message import TopicPartition
from monasca_common.operations.lag.commit_records import CommitRecord, commit_record

_TIME_MS = 1_700_000_000_123


def _text(text):
    return struct.pack(">h", len(text.encode())) + text.encode()


def _key(version=1, group="späte gruppe", topic="metrics", partition=3):
    return struct.pack(">h", version) + _text(group) + _text(topic) + struct.pack(">i", partition)


_VALUES = {
    0: struct.pack(">hq", 0, 42) + _text("noted") + struct.pack(">q", _TIME_MS),
    1: struct.pack(">hq", 1, 42) + _text("") + struct.pack(">qq", _TIME_MS, _TIME_MS + 1),
    2: struct.pack(">hq", 2, 42) + _text("x" * 300) + struct.pack(">q", _TIME_MS),
    3: struct.pack(">hqi", 3, 42, 7) + _text("") + struct.pack(">q", _TIME_MS),
    4: struct.pack(">hqi", 4, 42, 7) + b"\xad\x02" + b"x" * 300 + struct.pack(">q", _TIME_MS) + b"\x00",
}


class TestCommitRecord(base.BaseTestCase):
    def test_every_version_of_a_commit_is_read(self):
        expected = CommitRecord("späte gruppe", TopicPartition("metrics", 3), 42, _TIME_MS)
        for version, value in _VALUES.items():
            for key_version in (0, 1):
                with self.subTest(version=version, key_version=key_version):
                    self.assertEqual(expected, commit_record(_key(key_version), value, 5))

    def test_a_removed_offset_has_the_record_s_own_time(self):
        expected = CommitRecord("späte gruppe", TopicPartition("metrics", 3), None, 5)
        self.assertEqual(expected, commit_record(_key(), None, 5))

    def test_records_about_members_and_of_newer_versions_are_ignored(self):
        self.assertIsNone(commit_record(struct.pack(">h", 2) + _text("group"), b"\x00\x03anything", 5))
        self.assertIsNone(commit_record(_key(), struct.pack(">hq", 5, 42) + bytes(40), 5))

    def test_a_record_truncated_anywhere_is_ignored(self):
        for value in _VALUES.values():
            for length in range(len(value) - 9):
                self.assertIsNone(commit_record(_key(), value[:length], 5))
        for length in range(len(_key())):
            self.assertIsNone(commit_record(_key()[:length], _VALUES[3], 5))

    @given(st.binary(max_size=80), st.none() | st.binary(max_size=80))
    def test_no_bytes_raise_an_exception(self, key, value):
        commit_record(key, value, 5)
        commit_record(_key(), value, 5)
