# SPDX-License-Identifier: Apache-2.0
"""A plain model of the aggregation, which keeps all records in one list and adds fractions. It shares no code with the
pipeline and optimizes nothing, so a difference between the two is an error in one of them."""

import json
import re
from collections import Counter, defaultdict, namedtuple
from fractions import Fraction

Row = namedtuple("Row", "metric_id period_ms dimensions quantity count first_ms last_ms")
Quantity = namedtuple(
    "Quantity", "columns otherwise quantity count first_ms last_ms oldest latest", defaults=(None, None)
)
Event = namedtuple("Event", "time_ms partition offset quantity columns")

PERIOD_MS = {"hourly": 3_600_000, "daily": 86_400_000}
COMBINE = {"sum": sum, "max": max, "min": min, "avg": lambda values: sum(values) / len(values)}
DEFAULT = ["tenant_id", "user_id", "resource_uuid", "geolocation", "region", "zone", "host", "project_id"]


def aggregate(pre_rows, rows, messages, oldest_ms, latest_ms):
    """Return output rows in any order, indices of rejected messages, and the number of rates without a value by metric
    id."""
    outputs = {row["aggregation_params_map"]["aggregated_metric_name"] for row in rows}
    rejected, events = set(), defaultdict(list)
    for index, (value, partition, offset) in enumerate(messages):
        whole = well_formed(value)
        if whole is None:
            rejected.add(index)
            continue
        metric = whole["metric"]
        wanting = [
            (pre, row)
            for pre in pre_rows
            for row in rows
            if pre["event_type"] == metric["name"] and row["metric_id"] in pre["metric_id_list"]
        ]
        if metric["name"] in outputs or not wanting:
            continue
        if not oldest_ms <= metric["timestamp"] <= latest_ms or not has_good_dimensions(metric):
            rejected.add(index)
            continue
        for pre, row in wanting:
            columns = Columns(whole, pre, row["metric_id"])
            if wanted(columns, whole, pre, row["aggregation_params_map"]):
                quantity = Fraction(metric["value"])
                events[row["metric_id"]].append(Event(metric["timestamp"], partition, offset, quantity, columns))
    found, without_value = [], Counter()
    for row in rows:
        found += aggregate_one(row, events[row["metric_id"]], without_value)
    return found, rejected, without_value


def well_formed(value):
    try:
        whole = json.loads(value)
        metric = whole["metric"]
        assert type(metric["name"]) is str
        assert type(metric["timestamp"]) in (int, float)
        assert type(metric["value"]) in (int, float)
    except (ValueError, KeyError, TypeError, AttributeError, AssertionError):
        return None
    return whole


def has_good_dimensions(metric):
    return all(isinstance(value, str | None) for value in (metric.get("dimensions") or {}).values())


class Columns(dict[str, str]):
    """Every column of a record by its name; a missing, null or empty column is NA."""

    def __init__(self, whole, pre, metric_id):
        super().__init__(event_type=whole["metric"]["name"], metric_id=metric_id)
        maps = {
            "dimensions": whole["metric"].get("dimensions"),
            "meta": whole.get("meta"),
            "value_meta": whole["metric"].get("value_meta"),
        }
        for kind, members in maps.items():
            for key, value in (members or {}).items():
                if value not in (None, ""):
                    self[f"{kind}#{key}"] = value if isinstance(value, str) else json.dumps(value)
        defaults = pre["event_processing_params"]
        for column, places in {
            "tenant_id": ("dimensions#tenantId", "dimensions#tenant_id", "dimensions#project_id"),
            "resource_uuid": ("dimensions#instanceId", "dimensions#resource_id"),
            "user_id": ("meta#userId",),
            "region": ("meta#region",),
            "zone": ("meta#zone",),
            "geolocation": ("meta#geolocation",),
            "host": ("dimensions#hostname", "value_meta#host"),
        }.items():
            given = [self[place] for place in places if place in self]
            self[column] = given[0] if given else defaults.get(f"set_default_{column}_to", "NA")
        self["project_id"] = self["tenant_id"]

    def __missing__(self, column):
        return "NA"


def wanted(columns, whole, pre, parameters):
    for required in pre["required_raw_fields_list"]:
        present = required in columns if "#" in required else whole.get(required) not in (None, "", {})
        if not present:
            return False
    for one in parameters["filter_by_list"]:
        found = re.search(one["filter_expression"], columns[one["field_to_filter"]]) is not None
        if found != (one["filter_operation"] == "include"):
            return False
    return True


def aggregate_one(row, events, without_value):
    parameters = row["aggregation_params_map"]
    two_stages = "insert_data_pre_hourly" in parameters["aggregation_pipeline"]["insert"]
    period_ms = PERIOD_MS[parameters["aggregation_period"]]
    for period, inside in sorted(split(events, lambda event: event.time_ms // period_ms).items()):
        if two_stages:
            windows = split(inside, lambda event: event.time_ms // 600_000)
            first = [one for _, some in sorted(windows.items()) for one in first_stage(row, some, without_value)]
            quantities = second_stage(row, first, without_value)
        else:
            quantities = first_stage(row, inside, without_value)
        for quantity in quantities:
            shown = {}
            for column in parameters["dimension_list"]:
                value = quantity.columns.get(column, quantity.otherwise)
                if column == "aggregation_period":
                    value = parameters[column]
                shown[column.rpartition("#")[2]] = value
            yield Row(row["metric_id"], int(period) * period_ms, shown, quantity.quantity, *quantity[3:6])


def split(items, by):
    groups = defaultdict(list)
    for item in items:
        groups[by(item)].append(item)
    return groups


def first_stage(row, events, without_value):
    parameters = row["aggregation_params_map"]
    pipeline = parameters["aggregation_pipeline"]
    by = parameters["aggregation_group_by_list"]
    if pipeline["usage"] == "calculate_rate":
        rolled = [
            roll_up(fetch(events, by, operation), parameters["setter_rollup_group_by_list"], "sum")
            for operation in ("oldest", "latest")
        ]
        return rates([(o, [o], o.quantity, n.quantity) for o, n in zip(*rolled, strict=True)], row, without_value)
    if pipeline["usage"] == "fetch_quantity_util":
        quantities = utilised(events, by, parameters)
    else:
        quantities = fetch(events, by, parameters["usage_fetch_operation"])
    if "rollup_quantity" in pipeline["setters"]:
        return roll_up(quantities, parameters["setter_rollup_group_by_list"], parameters["setter_rollup_operation"])
    return quantities


def fetch(events, by, operation):
    for group, members in sorted(split(events, lambda event: tuple(event.columns[column] for column in by)).items()):
        first, last = min(one.time_ms for one in members), max(one.time_ms for one in members)
        if operation in COMBINE:
            quantity = COMBINE[operation]([one.quantity for one in members])
        else:
            at_end = [one for one in members if one.time_ms == {"oldest": first, "latest": last}[operation]]
            quantity = max(at_end, key=lambda one: (one.partition, one.offset)).quantity
        yield Quantity(named(by, group), "NA", quantity, len(members), first, last)


def named(by, group):
    """Return the columns of the group; tenant_id and project_id replace each other."""
    columns = dict(zip(by, group, strict=True))
    for one, other in (("tenant_id", "project_id"), ("project_id", "tenant_id")):
        if one in columns:
            columns.setdefault(other, columns[one])
    return columns


def utilised(events, by, parameters):
    kinds = split(events, lambda event: event.columns["event_type"])
    joined = [column for column in by if column != "event_type"]
    operation = parameters["usage_fetch_operation"]
    idle = {
        tuple(one.columns.items()): one.quantity
        for one in fetch(kinds[parameters["usage_fetch_util_idle_perc_event_type"]], joined, operation)
    }
    for one in fetch(kinds[parameters["usage_fetch_util_quantity_event_type"]], joined, operation):
        percent = idle.get(tuple(one.columns.items()))
        yield one._replace(quantity=(100 - percent) * one.quantity / 100) if percent else one


def roll_up(quantities, by, operation):
    by = [column for column in by if column not in ("aggregated_metric_name", "aggregation_period")]
    groups = split(quantities, lambda one: tuple(one.columns.get(column, one.otherwise) for column in by))
    for group, members in sorted(groups.items()):
        yield combined(named(by, group), members, COMBINE[operation]([one.quantity for one in members]))


def combined(columns, members, quantity, *ends):
    count = sum(one.count for one in members)
    first, last = min(one.first_ms for one in members), max(one.last_ms for one in members)
    return Quantity(columns, "all", quantity, count, first, last, *ends)


def rates(pairs, row, without_value):
    for one, members, oldest, latest in pairs:
        if oldest == 0:
            without_value[row["metric_id"]] += 1
        else:
            yield combined(one.columns, members, 100 * (oldest - latest) / oldest, oldest, latest)


def second_stage(row, quantities, without_value):
    parameters = row["aggregation_params_map"]
    by, operation = parameters["pre_hourly_group_by_list"], parameters["pre_hourly_operation"]
    by = DEFAULT if by == ["default"] else by
    if operation != "rate":
        return roll_up(quantities, by, operation)
    by = [column for column in by if column != "aggregation_period"]
    groups = split(quantities, lambda one: tuple(one.columns.get(column, one.otherwise) for column in by))
    pairs = []
    for group, members in groups.items():
        first = Quantity(named(by, group), "all", None, 0, 0, 0)
        pairs.append((first, members, members[0].oldest, members[-1].latest))
    return rates(pairs, row, without_value)
