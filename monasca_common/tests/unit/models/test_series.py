# SPDX-License-Identifier: Apache-2.0
"""Tests of series ids, with vectors for other implementations."""

import json
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from oslotest import base

from monasca_common.models.series import series_id

VECTORS = Path(__file__).with_name("series_vectors.json")
TEXT = st.text(max_size=6)
SERIES = st.tuples(TEXT, TEXT, TEXT, st.dictionaries(TEXT, TEXT, max_size=4))


class TestSeriesId(base.BaseTestCase):
    def test_ids_match_the_test_vectors(self):
        vectors = json.loads(VECTORS.read_text(encoding="utf-8"))
        self.assertGreater(len(vectors), 10)
        for vector in vectors:
            with self.subTest(vector["what"]):
                found = series_id(vector["tenant"], vector["region"], vector["name"], vector["dimensions"])
                self.assertEqual(vector["id"], found.hex())

    def test_only_equal_dimensions_share_an_id(self):
        vectors = json.loads(VECTORS.read_text(encoding="utf-8"))
        self.assertEqual(len(vectors) - 1, len({vector["id"] for vector in vectors}))

    @given(SERIES, st.randoms())
    def test_the_order_of_dimensions_does_not_change_the_id(self, series, random):
        tenant, region, name, dimensions = series
        shuffled = list(dimensions.items())
        random.shuffle(shuffled)
        self.assertEqual(series_id(*series), series_id(tenant, region, name, dict(shuffled)))

    @given(SERIES, SERIES)
    def test_different_series_have_different_ids(self, one, other):
        self.assertEqual(one == other, series_id(*one) == series_id(*other))
