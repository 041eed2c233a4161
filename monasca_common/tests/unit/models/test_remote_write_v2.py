# SPDX-License-Identifier: Apache-2.0
from hypothesis import given
from hypothesis import strategies as st
from oslotest import base

from monasca_common.models import remote_write, remote_write_v2
from monasca_common.models.errors import InvalidEnvelope, Unreadable
from monasca_common.tests.unit.models.test_remote_write import NOW_MS, NUMBERS, TEXTS
from monasca_common.tests.unit.models.write_request import number, part, request_2, sample, series

UP = {"__name__": "up"}
_TEXTS = TEXTS | st.just("")
_SAMPLES = st.lists(st.tuples(NUMBERS, st.integers(0, 2**63 - 1)), max_size=3)


class RemoteWrite2Test(base.BaseTestCase):
    @given(st.lists(st.tuples(st.dictionaries(_TEXTS, _TEXTS, max_size=5), _SAMPLES), max_size=4))
    def test_a_request_has_the_same_samples_and_faults_as_one_of_version_1(self, found):
        version_1 = b"".join(series(labels, *samples) for labels, samples in found)
        expected, post = remote_write.parse(version_1), remote_write_v2.parse(request_2(*found))
        self.assertEqual(
            (expected.valid, expected.total, expected.violations, expected.ids),
            (post.valid, post.total, post.violations, post.ids),
        )

    def test_references_need_not_be_packed(self):
        symbols = part(4, b"") + part(4, b"__name__") + part(4, b"up")
        for references in (b"\x08\x01\x08\x02", part(1, b"\x01") + part(1, b"\x02"), b"\x08\x01" + part(1, b"\x02")):
            post = remote_write_v2.parse(symbols + part(5, references + sample(1.5, NOW_MS)))
            self.assertEqual(remote_write.parse(series(UP, (1.5, NOW_MS))).ids, post.ids)

    def test_metadata_start_times_and_unknown_fields_are_ignored(self):
        metadata, unknown = part(5, b"\x08\x01"), part(900, b"x")
        started = part(2, sample(2.5, NOW_MS)[2:] + b"\x18" + number(NOW_MS - 1000))
        body = request_2((UP, [(1.5, NOW_MS)], started, metadata, unknown)) + unknown
        expected = remote_write.parse(series(UP, (1.5, NOW_MS), (2.5, NOW_MS)))
        self.assertEqual(expected.ids, remote_write_v2.parse(body).ids)

    def refused(self, *found):
        """Return the first violation of a request that begins with a valid sample, and count the others."""
        post = remote_write_v2.parse(request_2(({"__name__": "b"}, [(1.0, NOW_MS)]), *found))
        self.assertEqual(1, len(post.valid))
        return post.total - 1, str(post.violations[0])

    def test_native_histograms_and_exemplars_are_refused_and_samples_are_stored(self):
        count, fault = self.refused((UP, [], part(3, b"\x08\x01")))
        self.assertEqual(1, count)
        self.assertIn("timeseries[1] ('__name__=up') native histograms are not stored", fault)
        count, fault = self.refused((UP, [], part(4, b"\x11" + bytes(8))))
        self.assertEqual((1, "timeseries[1] exemplars are not stored: set send_exemplars to false"), (count, fault))

    def test_only_the_samples_of_a_series_with_a_wrong_reference_are_refused(self):
        for references, fault in (
            (b"\x01\x7f", "refers to the missing symbol 127: the request has 3 symbols"),
            (b"\x01" + number(2**63), f"refers to the missing symbol {2**63}: the request has 3 symbols"),
            (b"\x01", "has an odd number of references to symbols"),
            (b"\x01\x02\x01", "has an odd number of references to symbols"),
        ):
            samples = sample(1.5, NOW_MS) + sample(2.5, NOW_MS)
            self.assertEqual((2, f"timeseries[1] {fault}"), self.refused(([], [], part(1, references), samples)))

    def test_a_truncated_request_is_refused(self):
        parts = [part(4, b""), part(4, b"__name__"), part(4, b"up"), part(5, b"\x08\x01\x08\x02" + sample(1, NOW_MS))]
        body = b"".join(parts)
        ends = {len(b"".join(parts[:count])) for count in range(5)}
        for end in range(len(body)):
            if end in ends:
                self.assertEqual(0, remote_write_v2.parse(body[:end]).total)
            else:
                error = self.assertRaises(Unreadable, remote_write_v2.parse, body[:end])
                self.assertIn("message of remote write: it is truncated", str(error))
        truncated = parts[3][:1] + bytes((parts[3][1] - 1,)) + parts[3][2:-1]
        self.assertRaises(Unreadable, remote_write_v2.parse, b"".join([*parts[:3], truncated]))

    def test_a_request_with_too_many_parts_is_too_large(self):
        many, long = b"\x00" * 10_000, {"__name__": "up", "a": "x" * 2**20}
        for name, body in (
            ("symbols", part(4, b"") * 200_001),
            ("series", part(5, b"") * 20_001),
            ("samples", part(5, part(2, b"") * 20_001)),
            ("500000 labels", part(4, b"") + part(5, part(1, many)) * 100 + part(5, part(1, b"\x00\x00"))),
            ("500000 labels", part(4, b"") + part(5, b"\x08\x00" * 1_000_001)),
            ("labels", request_2(*[(long, [(1.0, NOW_MS)])] * 16)),
        ):
            error = self.assertRaises(InvalidEnvelope, remote_write_v2.parse, body)
            self.assertIn(name, str(error))
            self.assertEqual((True, False), (error.violations[0].too_large, isinstance(error, Unreadable)))
        for body in (part(4, b"") * 200_000, part(5, b"") * 20_000, part(4, b"") + part(5, part(1, many)) * 100):
            self.assertEqual(0, remote_write_v2.parse(body).total)
        self.assertEqual(15, remote_write_v2.parse(request_2(*[(long, [(1.0, NOW_MS)])] * 15)).total)
