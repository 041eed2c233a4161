# SPDX-License-Identifier: Apache-2.0
"""``monasca-common pipeline status``: show the state and progress of jobs."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from cliff.lister import Lister

from monasca_common.cli import configuration
from monasca_common.cli.command import ObjectColumn
from monasca_common.cli.pipeline import PipelineCommand
from monasca_common.models import times

if TYPE_CHECKING:
    from monasca_common.pipeline.evaluate.gauges import EvaluationGauges
    from monasca_common.pipeline.jobs.activity import LastBatch
    from monasca_common.pipeline.status import JobStatus, PartitionStatus

_COLUMNS = (
    *("job", "group", "topic", "state", "started", "seen", "behind", "due", "waiting", "still_open"),
    *("last_batch", "evaluation", "partitions"),
)


class PipelineStatus(PipelineCommand, Lister):
    """Show the state of each job, its last batch, its offsets, and pending periods.

    For example:
    monasca-common pipeline status --config-file /etc/monasca/pipeline.conf
    """

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterator[Sequence[Any]]]:
        from monasca_common.pipeline.status import job_statuses

        return _COLUMNS, map(status_row, job_statuses(configuration.read(parsed_args)))


def status_row(status: JobStatus) -> Sequence[Any]:
    activity = status.activity
    return (
        *(status.job, status.group, status.topic, status.state.value),
        *((None, None) if activity is None else map(times.shown, (activity.started_ms, activity.seen_ms))),
        *(status.behind, status.due, status.waiting, status.still_open),
        None if activity is None or activity.last_batch is None else _batch(activity.last_batch),
        None if status.evaluation is None else _evaluation(status.evaluation),
        _partitions(status.partitions),
    )


def _batch(batch: LastBatch) -> ObjectColumn:
    counts = f"{batch.offsets:,} offsets, {batch.records:,} records, {batch.seconds:,.1f} s"
    return ObjectColumn(f"{times.shown(batch.ended_ms)}: {counts}", asdict(batch))


def _evaluation(gauges: EvaluationGauges) -> ObjectColumn:
    lines = [f"evaluated up to {times.shown(gauges.evaluated_to_ms)}"]
    if gauges.watermarks_ms:
        watermark_ms, partition = min((time_ms, partition) for partition, time_ms in gauges.watermarks_ms.items())
        lines.append(f"watermark {times.shown(watermark_ms)} of partition {partition}")
    lines.append(", ".join(f"{count:,} {state}" for state, count in gauges.alarms.items()))
    return ObjectColumn("\n".join(lines), asdict(gauges))


def _partitions(partitions: Sequence[PartitionStatus]) -> ObjectColumn:
    lines = (f"{each.partition}: stored below {each.next_offset:,} of {each.end:,}" for each in partitions)
    return ObjectColumn("\n".join(lines), [asdict(each) for each in partitions])
