# SPDX-License-Identifier: Apache-2.0
"""``monasca-common pipeline list | run | status | specifications check``: run jobs on Spark, show their progress, and
check the specifications of the aggregates."""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cliff.lister import Lister
from cliff.show import ShowOne
from oslo_config import cfg

from monasca_common.cli import configuration
from monasca_common.cli.command import MonascaCommand, ObjectColumn, add_line_format, moment_ms
from monasca_common.cli.start_check import check_at_start
from monasca_common.kafka.errors import ConfigurationError
from monasca_common.models import times
from monasca_common.pipeline.errors import PipelineError
from monasca_common.runtime.logs import register_logging, start_logging, started, stopped
from monasca_common.runtime.shutdown import stop_on_signals

if TYPE_CHECKING:
    from monasca_common.pipeline.evaluate.gauges import EvaluationGauges
    from monasca_common.pipeline.jobs.activity import LastBatch
    from monasca_common.pipeline.status import JobStatus, PartitionStatus

LOG = logging.getLogger(__name__)

_STATUS_COLUMNS = (
    *("job", "group", "topic", "state", "started", "seen", "behind", "due", "waiting", "still_open"),
    *("last_batch", "evaluation", "partitions"),
)


class PipelineCommand(MonascaCommand):
    extra = "spark"
    reported = (*MonascaCommand.reported, PipelineError)


class PipelineList(PipelineCommand, Lister):
    """List the installed jobs.

    For example:
    monasca-common pipeline list -f json
    """

    configured = False

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[tuple[str, ...], Iterable[tuple[str, str]]]:
        from monasca_common.pipeline.jobs.job import job_class, job_names

        return ("job", "summary"), [(name, job_class(name).summary) for name in job_names()]


class PipelineRun(PipelineCommand):
    """Run a job on Spark until SIGTERM, or once.

    The options are in [spark], [pipeline_JOB] and [kafka]. SIGTERM and Ctrl-C stop the job after the current batch.
    However it stops, the next run resumes at the offsets in the database. For example, recompute two hours:
    monasca-common pipeline run backfill --from 2026-01-31T06:00:00Z --to 2026-01-31T08:00:00Z
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("job", metavar="JOB", help="the name of a job from `monasca-common pipeline list`")
        parser.add_argument("--once", action="store_true", help="stop at the current end of the topics")
        parser.add_argument(
            "--execute",
            action="store_true",
            help="only for the job replay: send the messages (default: count them)",
        )
        for name, text in (("from", "from this event time, such as"), ("to", "before this event time, such as")):
            parser.add_argument(
                f"--{name}", dest=f"{name}_time", type=moment_ms, metavar="TIME", help=f"{text} 2026-01-31T06:00:00Z"
            )
        add_line_format(parser)

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        from monasca_common.cli.progress import Shown
        from monasca_common.pipeline.jobs.job import JobRequest, JobWatcher, load_job

        request = JobRequest(parsed_args.once, parsed_args.from_time, parsed_args.to_time, execute=parsed_args.execute)
        conf = cfg.ConfigOpts()
        register_logging(conf)
        configuration.read(parsed_args, conf)
        start_logging(conf)
        job = load_job(parsed_args.job, conf)
        if request.execute and not job.executes:
            raise ConfigurationError("--execute: only the job replay accepts this option: remove it")
        check_at_start("pipeline", conf)
        LOG.info("%s", started(f"pipeline {parsed_args.job}", **job.facts()))
        stop = threading.Event()
        bounded = request.once or request.to_ms is not None or job.ends
        with Shown(parsed_args.job, bounded=bounded, lines=True, unit=job.unit) as shown:
            stop_on_signals(stop.set)
            progress = job.run(request, JobWatcher(stop, lambda now: shown.update(now.done, now.left)))
        LOG.info("%s", stopped(f"pipeline {parsed_args.job}", done=progress.done, left=progress.left))
        if parsed_args.formatter == "json":
            self.print(json.dumps({"job": parsed_args.job, **dataclasses.asdict(progress)}))
        else:
            self.print(f"{parsed_args.job}: {progress.done:,} {job.unit} done, {progress.left:,} left")
            for name, count in progress.results.items():
                self.print(f"  {name:<24}{count:>12,}")
        return 0


class PipelineStatus(PipelineCommand, Lister):
    """Show the state of each job, its last batch, its offsets, and pending periods.

    For example:
    monasca-common pipeline status --config-file /etc/monasca/pipeline.conf
    """

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterator[Sequence[Any]]]:
        from monasca_common.pipeline.status import job_statuses

        return _STATUS_COLUMNS, map(status_row, job_statuses(configuration.read(parsed_args)))


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
    return ObjectColumn(f"{times.shown(batch.ended_ms)}: {counts}", dataclasses.asdict(batch))


def _evaluation(gauges: EvaluationGauges) -> ObjectColumn:
    lines = [f"evaluated up to {times.shown(gauges.evaluated_to_ms)}"]
    if gauges.watermarks_ms:
        watermark_ms, partition = min((time_ms, partition) for partition, time_ms in gauges.watermarks_ms.items())
        lines.append(f"watermark {times.shown(watermark_ms)} of partition {partition}")
    lines.append(", ".join(f"{count:,} {state}" for state, count in gauges.alarms.items()))
    return ObjectColumn("\n".join(lines), dataclasses.asdict(gauges))


def _partitions(partitions: Sequence[PartitionStatus]) -> ObjectColumn:
    lines = (f"{each.partition}: stored below {each.next_offset:,} of {each.end:,}" for each in partitions)
    return ObjectColumn("\n".join(lines), [dataclasses.asdict(each) for each in partitions])


class SpecificationsCheck(PipelineCommand, ShowOne):
    """Check specifications, by default the shipped ones, and print all errors and warnings about probable mistakes.

    The exit status is 1 if a row is refused. For example:
    monasca-common pipeline specifications check --pre-transforms pre.json --transforms transforms.json
    """

    configured = False

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        for name, what in (
            ("pre-transforms", "the selection of input records"),
            ("transforms", "the computation of metrics"),
        ):
            parser.add_argument(f"--{name}", type=Path, metavar="F", help=f"JSON Lines file with {what}")

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Sequence[Any]]:
        from monasca_common.pipeline import load

        try:
            found = load(parsed_args.pre_transforms, parsed_args.transforms)
        except OSError as error:
            raise ConfigurationError(f"{error.filename} cannot be read: {error.strerror}") from None
        counts = {"pre_transforms": len(found.pre_transforms), "transforms": len(found.transforms)}
        return self.dict2columns(counts | {"warnings": ObjectColumn("\n".join(found.warnings), found.warnings)})
