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

    def test_metadata_exemplars_start_times_and_unknown_fields_are_ignored(self):
        exemplar, metadata, unknown = part(4, b"\x11" + bytes(8)), part(5, b"\x08\x01"), part(900, b"x")
        started = part(2, sample(2.5, NOW_MS)[2:] + b"\x18" + number(NOW_MS - 1000))
        body = request_2((UP, [(1.5, NOW_MS)], started, exemplar, metadata, unknown)) + unknown
        expected = remote_write.parse(series(UP, (1.5, NOW_MS), (2.5, NOW_MS)))
        self.assertEqual(expected.ids, remote_write_v2.parse(body).ids)

    def test_native_histograms_are_refused_and_samples_of_other_series_are_stored(self):
        post = remote_write_v2.parse(request_2((UP, [], part(3, b"\x08\x01")), ({"__name__": "b"}, [(1.0, NOW_MS)])))
        self.assertEqual((1, 2), (len(post.valid), post.total))
        self.assertIn("timeseries[0] ('__name__=up') native histograms are not stored", str(post.violations[0]))

    def test_references_to_missing_symbols_are_refused(self):
        symbols = part(4, b"") + part(4, b"__name__") + part(4, b"up")
        for references in (b"\x01\x03", b"\x01", b"\x01\x02\x01", b"\x01" + number(2**63)):
            body = symbols + part(5, part(1, b"\x01\x02")) + part(5, part(1, references) + sample(1.5, NOW_MS))
            error = self.assertRaises(Unreadable, remote_write_v2.parse, body)
            self.assertIn("the labels of timeseries[1] refer to missing symbols", str(error))
        self.assertRaises(Unreadable, remote_write_v2.parse, part(5, part(1, b"\x00\x00")))

    def test_a_truncated_request_is_refused(self):
        body = request_2((UP, [(1.5, NOW_MS)]))
        for end in range(1, len(body)):
            try:
                self.assertEqual([], remote_write_v2.parse(body[:end]).valid)
            except Unreadable as error:
                self.assertIn("remote write 2.0: it is truncated", str(error))

    def test_a_long_symbol_in_many_labels_is_refused_before_its_copies_fill_the_memory(self):
        long = {"__name__": "up", "a": "x" * 2**20}
        for count, is_refused in ((15, False), (16, True)):
            body = request_2(*[(long, [(1.0, NOW_MS)])] * count)
            if is_refused:
                error = self.assertRaises(InvalidEnvelope, remote_write_v2.parse, body)
                self.assertEqual((True, False), (error.violations[0].too_large, isinstance(error, Unreadable)))
            else:
                self.assertEqual((15, 0), (remote_write_v2.parse(body).total, len(remote_write_v2.parse(body).valid)))
