# SPDX-License-Identifier: Apache-2.0
"""The pipeline and a simple reference have equal results for random specifications and data."""

import math
import random

from hypothesis import given
from hypothesis import strategies as st
from oslotest import base

from monasca_common import pipeline
from monasca_common.pipeline.aggregate.output import dimensions, output
from monasca_common.pipeline.aggregate.records import RecordReader
from monasca_common.tests.unit.pipeline import reference
from monasca_common.tests.unit.pipeline.pipeline_case import (
    PUBLISHER,
    aggregates,
    envelope,
    partials_of,
    pre_row,
    specifications,
)

# Hours of several years, near the borders of hours and days in UTC.
_HOURS_MS = (0, 1_453_305_600_000, 1_457_366_400_000, 1_735_686_000_000, 1_735_689_600_000)
_WITHIN_MS = (0, 1, 599_999, 599_999.75, 600_000, 600_000.5, 1_800_000, 3_599_999, 3_599_999.9, 3_600_000)
OLDEST_MS, LATEST_MS = 0, 1_735_693_200_000
BOUNDS = pipeline.TimeBounds(OLDEST_MS, LATEST_MS)

# Random specifications and data, with few different values of each kind, so that ties are frequent.
_texts = st.sampled_from(["a", "b", "", None])
_timestamps = st.builds(lambda hour, within: hour + within, st.sampled_from(_HOURS_MS), st.sampled_from(_WITHIN_MS))
_quantities = st.one_of(
    st.sampled_from([0, 1]), st.integers(-3, 100), st.integers(-10_000, 1_000_000).map(lambda tenths: tenths / 10)
)


def _maps(*keys):
    return st.one_of(st.none(), st.dictionaries(st.sampled_from(keys), _texts, max_size=4))


_values_of_value_meta = st.one_of(
    st.none(), st.dictionaries(st.sampled_from(["host", "x"]), st.sampled_from(["a", 7, None]))
)
_good = st.builds(
    envelope,
    st.sampled_from(["cpu", "idle", "disk", "cpu", "idle", "other", "m0_agg"]),
    _timestamps,
    _quantities,
    dimensions=_maps("hostname", "mount", "tenantId", "project_id", "resource_id"),
    meta=_maps("region", "zone", "userId", "x"),
    value_meta=_values_of_value_meta,
    created=st.sampled_from([5, 5, 5.5, None]),
)
_bad = st.one_of(
    st.sampled_from([b"", b"{", b"null", b"[]", b"{}", b'{"metric": {}}', None]),
    st.builds(envelope, without=st.sampled_from([["name"], ["timestamp"], ["value"]])),
    st.builds(envelope, timestamp=st.sampled_from([None, "1", -1, LATEST_MS + 1, 10**30, [1]])),
    st.builds(envelope, value=st.sampled_from([None, "1", True, {}])),
    st.builds(envelope, dimensions=st.sampled_from([{"hostname": 1}, {"x": {}}])),
)


@st.composite
def random_messages(draw, most=30):
    """Generate values with partition and offset. The offsets of a partition are independent of the times."""
    values = draw(st.lists(st.one_of(_good, _good, _good, _good, _bad), max_size=most))
    if values:
        values += draw(st.lists(st.sampled_from(values), max_size=5))  # the same message at another offset
    offsets = {}
    found = []
    for value in values:
        partition = draw(st.integers(0, 2))
        offsets[partition] = offsets.get(partition, -1) + 1
        found.append((value, partition, offsets[partition]))
    return found


_COLUMNS = (
    "host",
    "tenant_id",
    "project_id",
    "region",
    "zone",
    "resource_uuid",
    "user_id",
    "dimensions#mount",
    "meta#x",
)
_columns = st.lists(st.sampled_from(_COLUMNS), unique=True, max_size=3)
_filters = st.lists(
    st.fixed_dictionaries(
        {
            "field_to_filter": st.sampled_from(["host", "dimensions#mount", "event_type", "value_meta#x"]),
            "filter_expression": st.sampled_from(["a", "^b$", "NA|a", "[0-9]", "c|i"]),
            "filter_operation": st.sampled_from(["include", "exclude"]),
        }
    ),
    max_size=1,
)


@st.composite
def _transform_rows(draw, metric_id):
    usage = draw(st.sampled_from(["fetch_quantity", "fetch_quantity", "fetch_quantity_util", "calculate_rate"]))
    group_by = draw(_columns)
    rolls_up = usage != "calculate_rate" and draw(st.booleans())
    setters = ["set_aggregated_metric_name", "set_aggregated_period"]
    second = ["sum", "max", "min", "avg"] + ["rate"] * 4 * (usage == "calculate_rate")
    operations = ["avg", "latest", "oldest"] + ["sum", "max", "min"] * (usage == "fetch_quantity")
    parameters = {
        "aggregation_pipeline": {
            "source": "streaming",
            "usage": usage,
            "setters": ["rollup_quantity"] * rolls_up + setters,
            "insert": ["prepare_data", draw(st.sampled_from(["insert_data", "insert_data_pre_hourly"]))],
        },
        "aggregated_metric_name": f"{metric_id}_agg",
        "aggregation_period": draw(st.sampled_from(["hourly", "hourly", "daily"])),
        "aggregation_group_by_list": group_by + (["event_type"] if usage == "fetch_quantity_util" else ["metric_id"]),
        "usage_fetch_operation": draw(st.sampled_from(operations)),
        "usage_fetch_util_quantity_event_type": "cpu",
        "usage_fetch_util_idle_perc_event_type": "idle",
        "filter_by_list": draw(_filters),
        "setter_rollup_group_by_list": draw(_columns),
        "setter_rollup_operation": draw(st.sampled_from(["sum", "max", "min", "avg"])),
        "dimension_list": ["aggregation_period", *draw(_columns)],
        "pre_hourly_operation": draw(st.sampled_from(second)),
        "pre_hourly_group_by_list": draw(st.one_of(st.just(["default"]), _columns, _columns)),
    }
    return {"metric_id": metric_id, "metric_group": metric_id, "aggregation_params_map": parameters}


@st.composite
def random_rows(draw):
    """Generate pre-transform rows and transform rows that fit each other."""
    metric_ids = [f"m{number}" for number in range(draw(st.integers(1, 3)))]
    required = st.lists(
        st.sampled_from(["creation_time", "dimensions#hostname", "meta#region", "value_meta#x"]), max_size=1
    )
    pre_rows = [
        pre_row(
            event_type,
            *metric_ids,
            required=draw(required),
            **draw(st.sampled_from([{}, {"set_default_region_to": "W", "set_default_zone_to": "1"}])),
        )
        for event_type in ("cpu", "idle", "disk", "m0_agg")
        if draw(st.sampled_from([True, True, True, False]))
    ]
    return pre_rows, [draw(_transform_rows(metric_id)) for metric_id in metric_ids]


def written(specs, found):
    """Return the rows in the form of the reference."""
    return [
        reference.Row(
            metric_id,
            period_ms,
            dimensions(specs.transforms[metric_id], usage),
            usage.quantity,
            usage.count,
            usage.first_ms,
            usage.last_ms,
        )
        for (metric_id, period_ms), aggregate in found.items()
        for usage in aggregate.usages
    ]


def in_order(rows):
    return sorted(rows, key=lambda row: (*row[:2], sorted(row.dimensions.items()), *row[4:], row.quantity))


class AgainstReferenceTest(base.BaseTestCase):
    def assert_same_rows(self, expected, found):
        without_quantities = [[row._replace(quantity=None) for row in in_order(rows)] for rows in (expected, found)]
        self.assertEqual(*without_quantities)
        for one, other in zip(in_order(expected), in_order(found), strict=True):
            # The reference does not round; large values that cancel out leave an error in proportion to their size.
            self.assertTrue(math.isclose(one.quantity, other.quantity, rel_tol=1e-9, abs_tol=1e-6), (one, other))

    @given(random_rows(), random_messages())
    def test_random_specifications_and_data_have_the_rows_of_the_reference(self, rows, messages):
        specs = specifications(*rows)
        expected, rejected, without_value = reference.aggregate(*rows, messages, BOUNDS.oldest_ms, BOUNDS.latest_ms)
        found = aggregates(specs, partials_of(specs, messages, bounds=BOUNDS))
        self.assert_same_rows(expected, written(specs, found))
        read = RecordReader(specs).read([value for value, _, _ in messages], BOUNDS)
        self.assertEqual(rejected, set(read.rejected))
        dropped = sum(aggregate.dropped["zero_oldest"] for aggregate in found.values())
        self.assertEqual(sum(without_value.values()), dropped)

    # Rule 29
    @given(random_rows(), random_messages(), st.randoms(use_true_random=False))
    def test_the_output_is_byte_identical_for_every_split_and_merge_of_the_input(self, rows, messages, chance):
        specs = specifications(*rows)
        whole = partials_of(specs, messages, bounds=BOUNDS)
        pieces = self._in_pieces(specs, messages, chance)
        self.assertEqual(dict(whole), self._merged_in_any_order(pieces, chance))
        chance.shuffle(pieces)
        self.assertEqual(self._published(specs, whole), self._published(specs, pieces))

    def _in_pieces(self, specs, messages, chance):
        shuffled = random.Random(chance.random()).sample(messages, len(messages))
        pieces = []
        while shuffled:
            size = chance.randint(1, len(shuffled))
            pieces += partials_of(specs, shuffled[:size], bounds=BOUNDS)
            del shuffled[:size]
        return pieces

    def _merged_in_any_order(self, pieces, chance):
        """Merge in a random tree."""
        keys = {key: [partial for one, partial in pieces if one == key] for key, _ in pieces}
        for partials in keys.values():
            while len(partials) > 1:
                chance.shuffle(partials)
                partials.append(partials.pop().merge(partials.pop()))
        return {key: partial for key, (partial,) in keys.items()}

    def _published(self, specs, partials):
        return {
            output(PUBLISHER, specs.transforms[metric_id], usage, period_ms, version_ms=7)
            for (metric_id, period_ms), aggregate in aggregates(specs, partials).items()
            for usage in aggregate.usages
        }
