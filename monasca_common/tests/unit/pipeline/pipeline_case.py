# SPDX-License-Identifier: Apache-2.0
"""Shared parts of the pipeline tests: rows of specifications, envelopes, and the path from records to aggregates."""

import json
from pathlib import Path

from oslotest import base

from monasca_common import pipeline
from monasca_common.pipeline.aggregate.partials import Accumulator
from monasca_common.pipeline.aggregate.records import RecordReader
from monasca_common.pipeline.aggregate.rollup import aggregate
from monasca_common.pipeline.specification.specification import Publisher
from monasca_common.pipeline.windows import period_start_ms

# A file in the folder of the golden data names its source.
GOLDEN = Path(__file__).parents[1] / "models" / "golden"
SHIPPED = Path(pipeline.__file__).parent / "specification" / "shipped"

EVER = pipeline.TimeBounds(0, 2**52)
PUBLISHER = Publisher("aggregate", "the-tenant", "the-region")
HOUR_MS = 3_600_000


def golden(name):
    return GOLDEN.joinpath(name).read_bytes().splitlines()


def shipped_row(metric_id, **parameters):
    """Return a shipped transform row with changed parameters; it has one stage unless ``stages=2``."""
    stages = parameters.pop("stages", 1)
    lines = SHIPPED.joinpath("transform_specs.jsonl").read_text().splitlines()
    row = next(row for row in map(json.loads, lines) if row["metric_id"] == metric_id)
    row["aggregation_params_map"] |= parameters
    if stages == 1:
        row["aggregation_params_map"]["aggregation_pipeline"]["insert"] = ["prepare_data", "insert_data"]
    return row


def pre_row(event_type, *metric_ids, required=(), **defaults):
    return {
        "event_type": event_type,
        "metric_id_list": list(metric_ids),
        "required_raw_fields_list": list(required),
        "event_processing_params": defaults,
    }


def specifications(pre_rows, rows):
    return pipeline.read(
        pipeline.JsonRows("pre.jsonl", map(json.dumps, pre_rows)),
        pipeline.JsonRows("transform.jsonl", map(json.dumps, rows)),
    )


def envelope(name="cpu", timestamp=0, value=1.0, *, dimensions=None, meta=None, value_meta=None, created=5, without=()):
    metric = {
        "name": name,
        "dimensions": dimensions or {},
        "timestamp": timestamp,
        "value": value,
        "value_meta": value_meta,
    }
    whole = {"metric": metric, "meta": meta or {}, "creation_time": created}
    for member in without:
        metric.pop(member, None)
        whole.pop(member, None)
    return json.dumps(whole).encode()


def partials_of(specs, messages, *, bounds=EVER):
    """Return the partials of ``messages``, which are values, or tuples of (value, partition, offset)."""
    messages = [one if isinstance(one, tuple) else (one, 0, offset) for offset, one in enumerate(messages)]
    values, partitions, offsets = zip(*messages, strict=True) if messages else ((), (), ())
    accumulator = Accumulator()
    accumulator.add(RecordReader(specs).read(values, bounds), partitions, offsets)
    return list(accumulator.partials())


def aggregates(specs, partials):
    """Return ``{(metric id, start of the period): Aggregate}``."""
    periods = {}
    for key, partial in partials:
        transform = specs.find(key.specification_id)
        period_ms = period_start_ms(transform.period, key.window_ms)
        periods.setdefault((transform.metric_id, period_ms), []).append((key, partial))
    return {
        (metric_id, period_ms): aggregate(specs.transforms[metric_id], found)
        for (metric_id, period_ms), found in periods.items()
    }


class PipelineCase(base.BaseTestCase):
    def usages(self, specs, messages):
        """Return the usages of the only specification and the only period."""
        (aggregate,) = aggregates(specs, partials_of(specs, messages)).values()
        return aggregate.usages

    def usage(self, specs, messages):
        (usage,) = self.usages(specs, messages)
        return usage
