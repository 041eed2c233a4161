# SPDX-License-Identifier: Apache-2.0
"""``monasca-common pipeline list | run | submit | status``: jobs on Spark."""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import threading

from oslo_config import cfg

from monasca_common.cli import configuration
from monasca_common.cli.command import MonascaCommand, stop_on_signals
from monasca_common.cli.start_check import check_at_start
from monasca_common.kafka.errors import ConfigurationError, MessagingError
from monasca_common.models import times
from monasca_common.runtime import register_logging, start_logging, started, stopped
from monasca_common.storage.errors import StorageError

LOG = logging.getLogger(__name__)


class PipelineCommand(MonascaCommand):
    extra = "spark"
    configured = True  # whether it reads configuration files

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        if self.configured:
            configuration.add_arguments(parser)
        parser.add_argument("--json", action="store_true", help="print one line of JSON in place of text")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """0: done. 1: not, and the reason on standard error."""
        from monasca_common.pipeline.errors import PipelineError

        try:
            return self.act(parsed_args)
        except (
            ConfigurationError,
            MessagingError,
            StorageError,
            PipelineError,
            cfg.Error,
        ) as error:
            return self.complain(str(error))

    def act(self, parsed_args: argparse.Namespace) -> int:
        raise NotImplementedError


class PipelineList(PipelineCommand):
    """Name the jobs that are installed.

    For example:
    monasca-common pipeline list --json
    """

    configured = False

    def act(self, parsed_args: argparse.Namespace) -> int:
        from monasca_common.pipeline.jobs.job import job_class, job_names

        summaries = {name: job_class(name).summary for name in job_names()}
        if parsed_args.json:
            self.print(json.dumps(summaries))
        else:
            width = max(map(len, summaries), default=0)
            for name, summary in summaries.items():
                self.print(f"{name:<{width}}  {summary}")
        return 0


class PipelineRun(PipelineCommand):
    """Run a job on Spark until SIGTERM, or once.

    The options are in [spark], [pipeline_JOB] and [kafka]. SIGTERM and Ctrl-C end it after the batch that is under
    way; whatever else ends it, the next run goes on where the database says.
    For example, the periods of two hours again:
    monasca-common pipeline run backfill --from 2026-01-31T06:00:00Z --to 2026-01-31T08:00:00Z
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument("job", metavar="JOB", help="one that `monasca-common pipeline list` names")
        _add_range(parser)
        return parser

    def act(self, parsed_args: argparse.Namespace) -> int:
        from monasca_common.cli.progress import Shown
        from monasca_common.pipeline.jobs.job import JobRequest, JobWatcher, load_job

        from_ms, to_ms = _ms(parsed_args.from_time), _ms(parsed_args.to_time)
        request = JobRequest(parsed_args.once, from_ms, to_ms, execute=parsed_args.execute)
        conf = cfg.ConfigOpts()
        register_logging(conf)
        configuration.read(parsed_args, conf)
        start_logging(conf)
        job = load_job(parsed_args.job, conf)
        check_at_start("pipeline", conf)
        LOG.info("%s", started(f"pipeline {parsed_args.job}", **job.facts()))
        stop = threading.Event()
        with Shown(parsed_args.job, bounded=request.once or request.to_ms is not None or job.ends) as shown:
            stop_on_signals(stop.set)
            progress = job.run(request, JobWatcher(stop, lambda now: shown.tell(now.done, now.left)))
        LOG.info("%s", stopped(f"pipeline {parsed_args.job}", done=progress.done, left=progress.left))
        if parsed_args.json:
            self.print(json.dumps({"job": parsed_args.job, **dataclasses.asdict(progress)}))
        else:
            self.print(f"{parsed_args.job}: {progress.done:,} offsets done, {progress.left:,} left")
            for name, count in progress.results.items():
                self.print(f"  {name:<24}{count:>12,}")
        return 0


class PipelineSubmit(PipelineRun):
    """Run a job on the master that [spark] names: another name of `pipeline run`, which starts spark-submit, too.

    For example:
    monasca-common pipeline submit aggregate --config-file /etc/monasca/pipeline.conf
    """


class PipelineStatus(PipelineCommand):
    """Tell whether each job runs and how far it is: its last batch, its lag, and what is yet to be published.

    For example:
    monasca-common pipeline status --config-file /etc/monasca/pipeline.conf
    """

    def act(self, parsed_args: argparse.Namespace) -> int:
        from monasca_common.cli.pipeline_status import status_lines
        from monasca_common.kafka.clock import SystemClock
        from monasca_common.pipeline.status import job_statuses

        found = job_statuses(configuration.read(parsed_args))
        if parsed_args.json:
            self.print(json.dumps([dataclasses.asdict(each) for each in found]))
            return 0
        for each in found:
            for line in status_lines(each, SystemClock().time_ms()):
                self.print(line)
        return 0


def _add_range(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--once", action="store_true", help="end when all is done that there was at the start")
    parser.add_argument("--execute", action="store_true", help="of replay: send; without it, only count")
    for name, text in (("from", "from this event time on"), ("to", "up to this event time, not included")):
        parser.add_argument(
            f"--{name}", dest=f"{name}_time", type=_time, metavar="TIME", help=f"{text}: 2026-01-31T06:00:00Z"
        )


def _ms(given: str | None) -> int | None:
    return None if given is None else times.from_ms_or_iso(given)


def _time(given: str) -> str:
    try:
        _ms(given)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{given}: {error}") from None
    return given
