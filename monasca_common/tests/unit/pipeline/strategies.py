# SPDX-License-Identifier: Apache-2.0
"""Random specifications and data, with few different values of each kind, so that ties are frequent."""

from hypothesis import strategies as st

from monasca_common.tests.unit.pipeline.pipeline_case import envelope, pre_row

# Hours of several years, near the borders of hours and days in UTC.
HOURS_MS = (0, 1_453_305_600_000, 1_457_366_400_000, 1_735_686_000_000, 1_735_689_600_000)
WITHIN_MS = (0, 1, 599_999, 599_999.75, 600_000, 600_000.5, 1_800_000, 3_599_999, 3_599_999.9, 3_600_000)
OLDEST_MS, LATEST_MS = 0, 1_735_693_200_000

texts = st.sampled_from(["a", "b", "", None])
timestamps = st.builds(lambda hour, within: hour + within, st.sampled_from(HOURS_MS), st.sampled_from(WITHIN_MS))
quantities = st.one_of(
    st.sampled_from([0, 1]), st.integers(-3, 100), st.integers(-10_000, 1_000_000).map(lambda tenths: tenths / 10)
)


def maps(*keys):
    return st.one_of(st.none(), st.dictionaries(st.sampled_from(keys), texts, max_size=4))


values_of_value_meta = st.one_of(
    st.none(), st.dictionaries(st.sampled_from(["host", "x"]), st.sampled_from(["a", 7, None]))
)
good = st.builds(
    envelope,
    st.sampled_from(["cpu", "idle", "disk", "cpu", "idle", "other", "m0_agg"]),
    timestamps,
    quantities,
    dimensions=maps("hostname", "mount", "tenantId", "project_id", "resource_id"),
    meta=maps("region", "zone", "userId", "x"),
    value_meta=values_of_value_meta,
    created=st.sampled_from([5, 5, 5.5, None]),
)
bad = st.one_of(
    st.sampled_from([b"", b"{", b"null", b"[]", b"{}", b'{"metric": {}}', None]),
    st.builds(envelope, without=st.sampled_from([["name"], ["timestamp"], ["value"]])),
    st.builds(envelope, timestamp=st.sampled_from([None, "1", -1, LATEST_MS + 1, 10**30, [1]])),
    st.builds(envelope, value=st.sampled_from([None, "1", True, {}])),
    st.builds(envelope, dimensions=st.sampled_from([{"hostname": 1}, {"x": {}}])),
)


@st.composite
def messages(draw, most=30):
    """Generate values with partition and offset. The offsets of a partition are independent of the times."""
    values = draw(st.lists(st.one_of(good, good, good, good, bad), max_size=most))
    if values:
        values += draw(st.lists(st.sampled_from(values), max_size=5))  # the same message at another offset
    offsets = {}
    found = []
    for value in values:
        partition = draw(st.integers(0, 2))
        offsets[partition] = offsets.get(partition, -1) + 1
        found.append((value, partition, offsets[partition]))
    return found


COLUMNS = (
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
columns = st.lists(st.sampled_from(COLUMNS), unique=True, max_size=3)
filters = st.lists(
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
def transform_rows(draw, metric_id):
    usage = draw(st.sampled_from(["fetch_quantity", "fetch_quantity", "fetch_quantity_util", "calculate_rate"]))
    group_by = draw(columns)
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
        "filter_by_list": draw(filters),
        "setter_rollup_group_by_list": draw(columns),
        "setter_rollup_operation": draw(st.sampled_from(["sum", "max", "min", "avg"])),
        "dimension_list": ["aggregation_period", *draw(columns)],
        "pre_hourly_operation": draw(st.sampled_from(second)),
        "pre_hourly_group_by_list": draw(st.one_of(st.just(["default"]), columns, columns)),
    }
    return {"metric_id": metric_id, "metric_group": metric_id, "aggregation_params_map": parameters}


@st.composite
def rows(draw):
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
    return pre_rows, [draw(transform_rows(metric_id)) for metric_id in metric_ids]
