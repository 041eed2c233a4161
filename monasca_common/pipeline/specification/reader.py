# SPDX-License-Identifier: Apache-2.0
"""Reads specifications from JSON lines, and reports all faults of all rows together. No row is executed as code."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from monasca_common.models.fields import Fields
from monasca_common.models.limits import NON_EMPTY, POSTED
from monasca_common.pipeline import components
from monasca_common.pipeline.errors import InvalidSpecifications, RowFault
from monasca_common.pipeline.patterns import Pattern
from monasca_common.pipeline.specification import columns
from monasca_common.pipeline.specification.specification import (
    CALCULATE_RATE,
    IDLE_EVENT_TYPE,
    QUANTITY_EVENT_TYPE,
    RATE,
    Dimension,
    Filter,
    PreTransform,
    Specifications,
    Transform,
    specification_id,
)
from monasca_common.pipeline.specification.warnings import warnings
from monasca_common.pipeline.windows import PERIODS_MS

_COMMONEST = "fetch_quantity"
_ROLLUP = "rollup_quantity"
_NAMING_SETTERS = ("set_aggregated_metric_name", "set_aggregated_period")
_TWO_STAGES, _ONE_STAGE = "insert_data_pre_hourly", "insert_data"
_INSERTS = ("prepare_data", _TWO_STAGES, _ONE_STAGE)

_DEFAULT = "default"
_DEFAULT_SECOND_BY = ("tenant_id", "user_id", "resource_uuid", "geolocation", "region", "zone", "host")
_REQUIRED_PLAIN = ("creation_time", "meta", "metric")
_DEFAULTS = ("set_default_zone_to", "set_default_geolocation_to", "set_default_region_to")

_PARAMETERS = "aggregation_params_map"
_PIPELINE = "aggregation_pipeline"
# Rows of old installations contain service_id and metric_group, which were never used.
_PRE_TRANSFORM_FIELDS = (
    "event_type",
    "metric_id_list",
    "required_raw_fields_list",
    "event_processing_params",
    "service_id",
)
_TRANSFORM_FIELDS = (_PARAMETERS, "metric_id", "metric_group")
_PARAMETER_FIELDS = (
    _PIPELINE,
    "aggregated_metric_name",
    "aggregation_period",
    "aggregation_group_by_list",
    "usage_fetch_operation",
    QUANTITY_EVENT_TYPE,
    IDLE_EVENT_TYPE,
    "filter_by_list",
    "setter_rollup_group_by_list",
    "setter_rollup_operation",
    "dimension_list",
    "pre_hourly_operation",
    "pre_hourly_group_by_list",
)
_FILTER_FIELDS = ("field_to_filter", "filter_expression", "filter_operation")

SHIPPED = files("monasca_common.pipeline.specification") / "shipped"


@dataclass(frozen=True, slots=True)
class JsonRows:
    """JSON objects, one per row, and their source (the name of a file or table). Empty rows are ignored."""

    source: str
    lines: Iterable[str | bytes]

    @classmethod
    def of_file(cls, path: Path | Traversable) -> JsonRows:
        return cls(str(path) if isinstance(path, Path) else path.name, path.read_bytes().split(b"\n"))


def load(pre_transforms: Path | None = None, transforms: Path | None = None) -> Specifications:
    """Read specifications from files of JSON lines. ``None`` selects the shipped file.

    Raises `InvalidSpecifications` and `OSError`.
    """
    return read(
        JsonRows.of_file(pre_transforms or SHIPPED / "pre_transform_specs.jsonl"),
        JsonRows.of_file(transforms or SHIPPED / "transform_specs.jsonl"),
    )


def read(pre_transforms: JsonRows, transforms: JsonRows) -> Specifications:
    """Read specifications from rows of any source. Raises `InvalidSpecifications`."""
    faults: list[RowFault] = []
    found_transforms = list(_each(transforms, _transform, faults))
    found_pre_transforms = list(_each(pre_transforms, _pre_transform, faults))
    by_id: dict[str, Transform] = {}
    first_row: dict[str, int] = {}
    for row, metric_id, transform in found_transforms:
        if metric_id in first_row:
            rule = f"{metric_id!r} is already in row {first_row[metric_id]}: give each row its own id"
            faults.append(RowFault(transforms.source, row, "metric_id", rule))
        first_row.setdefault(metric_id, row)
        by_id[metric_id] = transform
    faults += _unmatched(found_pre_transforms, pre_transforms.source, first_row, transforms.source)
    if faults:
        raise InvalidSpecifications(faults)
    kept = tuple(row for _, _, row in found_pre_transforms)
    for metric_id, transform in by_id.items():
        feeding = tuple(row for row in kept if metric_id in row.metric_ids)
        by_id[metric_id] = replace(transform, id=specification_id(transform, feeding))
    return Specifications(kept, by_id, tuple(warnings(kept, by_id)))


Row = tuple[int, str, Any]


def _each(rows: JsonRows, parse: Callable[[Fields], tuple[str, Any]], faults: list[RowFault]) -> Iterator[Row]:
    """Yield row numbers, names and values. Values with faults are included, so that their other fields are also
    checked."""
    for number, line in enumerate(rows.lines, start=1):
        text = line.encode() if isinstance(line, str) else line
        if not text.strip():
            continue
        fields = Fields.read(text)
        name, value = parse(fields)
        faults += [RowFault(rows.source, number, violation.where, violation.rule) for violation in fields.violations]
        yield number, name, value


def _unmatched(rows: list[Row], source: str, metric_ids: dict[str, int], transforms_source: str) -> Iterator[RowFault]:
    """Yield the faults of metric ids that have no transform, or that receive the same event type twice."""
    seen: dict[tuple[str, str], int] = {}
    for row, event_type, value in rows:
        for position, metric_id in enumerate(value.metric_ids):
            field = f"metric_id_list[{position}]"
            if metric_id not in metric_ids:
                rule = f"{metric_id!r} is not the metric_id of a row of {transforms_source}: add a row or remove the id"
                yield RowFault(source, row, field, rule)
            first = seen.setdefault((event_type, metric_id), row)
            if first != row or value.metric_ids.index(metric_id) != position:
                rule = f"{metric_id!r} already receives {event_type!r} from row {first}: each record would count twice"
                yield RowFault(source, row, field, rule)


def _pre_transform(row: Fields) -> tuple[str, PreTransform]:
    _only(row, _PRE_TRANSFORM_FIELDS)
    event_type = row.text("event_type", NON_EMPTY) or ""
    metric_ids = _texts(row, "metric_id_list", least=1)
    required = _texts(row, "required_raw_fields_list", _required_field)
    parameters = row.inner("event_processing_params", required=False)
    _only(parameters, _DEFAULTS)
    zone, geolocation, region = (parameters.text(key, required=False) or columns.NA for key in _DEFAULTS)
    return event_type, PreTransform(event_type, metric_ids, required, zone, geolocation, region)


def _transform(row: Fields) -> tuple[str, Transform]:
    _only(row, _TRANSFORM_FIELDS)
    metric_id = row.text("metric_id", NON_EMPTY) or ""
    parameters = row.inner(_PARAMETERS)
    name, setters, two_stages = _pipeline(parameters.inner(_PIPELINE))
    # An invalid usage is already a fault. Its other fields are checked as if it were the most common usage.
    usage = components.usage(name or _COMMONEST)
    asked = (*usage.parameters, *(field for setter in setters for field in components.setter(setter).parameters))
    _only(parameters, (*_PARAMETER_FIELDS, *asked))
    rolls_up = _ROLLUP in setters
    group_by = _columns(parameters, "aggregation_group_by_list", columns.PLAIN)
    group_by = (*(column for column in usage.group_by if column not in group_by), *group_by)
    operation = rollup_operation = second_operation = None
    if usage.operations is None:
        operation = _operation(parameters, "usage_fetch_operation", lambda found: found.fetch)
    elif usage.operations:
        operation = _choice(parameters, "usage_fetch_operation", usage.operations)
    rollup_by: tuple[str, ...] = ()
    if rolls_up or usage.rolls_up:
        rollup_by = _columns(parameters, "setter_rollup_group_by_list", (*columns.PLAIN, *columns.CONSTANT))
    if rolls_up:
        rollup_operation = _operation(parameters, "setter_rollup_operation", lambda found: found.combine)
    second_by: tuple[str, ...] = ()
    if two_stages:
        second_operation = _operation(parameters, "pre_hourly_operation", lambda found: found.combine, RATE)
        second_by = _second_by(parameters)
        if second_operation == RATE and (name != CALCULATE_RATE or rolls_up):
            rule = f"is a rate, which requires usage {CALCULATE_RATE} without {_ROLLUP}: it compares oldest and latest"
            parameters.report("pre_hourly_operation", [rule])
    transform = Transform(
        metric_id=metric_id,
        usage=name,
        name=parameters.text("aggregated_metric_name", POSTED.name) or "",
        period=_period(parameters),
        group_by=group_by,
        operation=operation,
        filters=tuple(_filters(parameters)),
        rollup_by=rollup_by,
        rollup_operation=rollup_operation,
        dimensions=_dimensions(parameters),
        second_by=second_by,
        second_operation=second_operation,
        setters=setters,
        parameters={field: parameters.text(field, NON_EMPTY) or "" for field in asked},
    )
    return metric_id, transform


def _pipeline(pipeline: Fields) -> tuple[str, tuple[str, ...], bool]:
    """Return the names of usage and setters, and whether windows are combined in a second stage."""
    _only(pipeline, ("source", "usage", "setters", "insert"))
    _choice(pipeline, "source", ("streaming",))
    usage = pipeline.parsed("usage", lambda name: components.check(components.usage, components.USAGES, name))
    setters = _texts(pipeline, "setters", lambda name: components.check(components.setter, components.SETTERS, name))
    for setter in _NAMING_SETTERS:
        if isinstance(pipeline.members.get("setters"), list) and setter not in setters:
            pipeline.report("setters", [f"must contain {setter}: otherwise, the output lacks a name or a period"])
    inserts = _texts(pipeline, "insert", _one_of(_INSERTS))
    if isinstance(pipeline.members.get("insert"), list) and (_TWO_STAGES in inserts) == (_ONE_STAGE in inserts):
        pipeline.report("insert", [f"must contain either {_TWO_STAGES} (two stages) or {_ONE_STAGE} (one stage)"])
    return usage or "", setters, _TWO_STAGES in inserts


def _operation(
    parameters: Fields, key: str, fits: Callable[[components.OperationComponent], object], *others: str
) -> str:
    """Return the name of a valid operation, or one of ``others``."""

    def check(name: object) -> str:
        return name if name in others else components.check(components.operation, components.OPERATIONS, name, fits)

    return parameters.parsed(key, check) or ""


def _period(parameters: Fields) -> str:
    rule = "must be hourly or daily: partials cover ten minutes each, so shorter periods are impossible"
    period = parameters.text("aggregation_period") or ""
    if period and period not in PERIODS_MS:
        parameters.report("aggregation_period", [f"{rule}; not {period!r}"])
    return period


def _second_by(parameters: Fields) -> tuple[str, ...]:
    key = "pre_hourly_group_by_list"
    if parameters.members.get(key) == [_DEFAULT]:
        return _DEFAULT_SECOND_BY
    return _columns(parameters, key, (*columns.PLAIN, *columns.CONSTANT))


def _dimensions(parameters: Fields) -> tuple[Dimension, ...]:
    key = "dimension_list"
    known = (*columns.PLAIN, *columns.CONSTANT, *columns.BARE)
    texts = _texts(parameters, key, lambda text: columns.check(text, known) and text)
    found = [Dimension(columns.map_and_key(text)[1], columns.check(text, known)) for text in texts]
    keys = [dimension.key for dimension in found]
    for name in keys:
        parameters.report(key, (f"{name!r}, as a dimension's name, {fault}" for fault in POSTED.key.faults(name)))
    for name in sorted({name for name in keys if keys.count(name) > 1}):
        parameters.report(key, [f"names the dimension {name!r} more than once: one value would replace the other"])
    return tuple(found)


def _filters(parameters: Fields) -> Iterator[Filter]:
    key = "filter_by_list"
    given = parameters.get(key)
    if given is not None and not isinstance(given, list):
        parameters.report(key, ["must be an array"])
        return
    for position, one in enumerate(given or ()):
        # Faults of the filter are collected separately, and then reported with its position.
        fields = Fields(one)
        _only(fields, _FILTER_FIELDS)
        column = fields.parsed("field_to_filter", lambda text: columns.check(str(text), columns.PLAIN))
        pattern = fields.parsed("filter_expression", _pattern)
        operation = _choice(fields, "filter_operation", ("include", "exclude"))
        parameters.report(key, (f"[{position}]: {violation}" for violation in fields.violations))
        if column is not None and pattern is not None:
            yield Filter(column, pattern, include=operation == "include")


def _pattern(text: Any) -> Pattern:
    if not isinstance(text, str) or not text:
        raise ValueError("must be a regular expression in a non-empty string")
    return Pattern(text)


def _required_field(text: str) -> str:
    kind, separator, key = text.partition("#")
    if (separator and kind in columns.MAPS and key) or (not separator and text in _REQUIRED_PLAIN):
        return text
    raise ValueError(
        f"{text!r} is not a field of an envelope: write {', '.join(_REQUIRED_PLAIN)}, or dimensions#{key or text}, "
        f"meta#{key or text} or value_meta#{key or text} for a key of these maps"
    )


def _only(fields: Fields, known: tuple[str, ...]) -> None:
    for key in fields.members:
        if key not in known:
            fields.report(key, [f"is not a known field: write one of {', '.join(known)}"])


def _one_of(choices: tuple[str, ...]) -> Callable[[str], str]:
    def check(text: str) -> str:
        if text not in choices:
            raise ValueError(f"must be one of {', '.join(choices)}, not {text!r}")
        return text

    return check


def _choice(fields: Fields, key: str, choices: tuple[str, ...]) -> str:
    return fields.parsed(key, lambda value: _one_of(choices)(value if isinstance(value, str) else repr(value))) or ""


def _texts(fields: Fields, key: str, check: Callable[[str], str] = str, *, least: int = 0) -> tuple[str, ...]:
    """Return a required array of strings. Strings that ``check`` refuses are reported as faults and omitted."""
    given = fields.get(key, required=True)
    if given is None:
        return ()
    if not isinstance(given, list) or not all(isinstance(item, str) and item for item in given):
        fields.report(key, ["must be an array of non-empty strings"])
        return ()
    if len(given) < least:
        fields.report(key, [f"must have a length of at least {least}"])
    found: list[str] = []
    for position, item in enumerate(given):
        try:
            found.append(check(item))
        except ValueError as error:
            fields.report(key, [f"[{position}] {error}"])
    return tuple(found)


def _columns(fields: Fields, key: str, known: tuple[str, ...]) -> tuple[str, ...]:
    """Return the columns without duplicates (tenant and project are one column) and without constant columns, which do
    not separate groups."""
    found = _texts(fields, key, lambda text: columns.check(text, known))
    return tuple(dict.fromkeys(column for column in found if column not in columns.CONSTANT))
