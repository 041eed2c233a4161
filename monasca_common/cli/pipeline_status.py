# SPDX-License-Identifier: Apache-2.0
"""The lines of ``monasca-common pipeline status``."""

from __future__ import annotations

from collections.abc import Iterator

from monasca_common.models import times
from monasca_common.pipeline.evaluate.gauges import EvaluationGauges
from monasca_common.pipeline.jobs.activity import JobState
from monasca_common.pipeline.status import JobStatus


def status_lines(status: JobStatus, now_ms: int) -> Iterator[str]:
    left = f"{status.behind:,} offsets behind, {status.due:,} {status.waiting}"
    if status.still_open:
        left += f", {status.still_open:,} still open"
    yield f"{status.job}: group {status.group}, {left}"
    yield f"  {_state(status, now_ms)}"
    batch = status.last_batch
    if batch is not None:
        counts = f"{batch.offsets:,} offsets, {batch.records:,} records, {batch.seconds:,.1f} s"
        yield f"  last batch at {times.shown(batch.ended_ms)}: {counts}"
    if status.evaluation is not None:
        yield from _evaluation(status.evaluation, now_ms)
    yield f"  lag {_seconds(status.lag_seconds)}"
    for each in status.partitions:
        where = f"stored below {each.next_offset:,} of {each.end:,}"
        yield f"  {status.topic}/{each.partition}  {where}, lag {_seconds(each.lag_seconds)}"


def _evaluation(gauges: EvaluationGauges, now_ms: int) -> Iterator[str]:
    def up_to(until_ms: int) -> str:
        return f"up to {times.shown(until_ms)}, {_seconds(max(0.0, (now_ms - until_ms) / 1000))} ago"

    yield f"  alarms are evaluated {up_to(gauges.evaluated_to_ms)}"
    if gauges.watermarks_ms:
        watermark_ms, partition = min((time_ms, partition) for partition, time_ms in gauges.watermarks_ms.items())
        yield f"  measurements are known {up_to(watermark_ms)}, by partition {partition}"
    yield f"  alarms: {', '.join(f'{count:,} {state}' for state, count in gauges.alarms.items())}"


def _state(status: JobStatus, now_ms: int) -> str:
    if status.state is JobState.UNKNOWN or status.seen_ms is None or status.started_ms is None:
        return "no job has reported that it runs"
    if status.state is JobState.RUNNING:
        ago = max(0, now_ms - status.seen_ms) // 1000
        return f"runs since {times.shown(status.started_ms)}, reported {ago} s ago"
    if status.state is JobState.STOPPED:
        return f"stopped at {times.shown(status.seen_ms)}"
    return f"silent since {times.shown(status.seen_ms)}: it was killed, or cannot reach its database"


def _seconds(lag_seconds: float | None) -> str:
    return "unknown" if lag_seconds is None else f"{lag_seconds:,.0f} s"
