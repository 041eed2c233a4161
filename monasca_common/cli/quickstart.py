# SPDX-License-Identifier: Apache-2.0
"""``monasca-common quickstart``: store this machine's metrics and evaluate alarms despite injected failures."""

import argparse
import contextlib
import datetime
import importlib
import json
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from rich.console import Console

from monasca_common.cli.command import MonascaCommand, Terminated, add_line_format
from monasca_common.cli.terminal import unfiltered
from monasca_common.devbroker import DevBrokerError, KafkaCluster
from monasca_common.devbroker.ports import free_ports
from monasca_common.devbroker.schema_registry import ApicurioRegistry
from monasca_common.devbroker.supervisor import Supervisor
from monasca_common.kafka.extras import remedy
from monasca_common.quickstart import aggregates, alarm, formats, prometheus, webhook
from monasca_common.quickstart.load import PROCESS_NAME, GeneratedLoad
from monasca_common.quickstart.run import Run
from monasca_common.quickstart.services import (
    ServiceFailed,
    ServiceProcess,
    run_command,
    unread_messages,
    write_configuration,
    write_notification_configuration,
)
from monasca_common.quickstart.table import RunSummary, StageResult, show, show_formats, show_prometheus, show_stages

_PARTITIONS = 4
_INITIALIZED = ("api", "persister", "pipeline", "lag", "notification")
_NEEDED = (
    "psutil",
    "jinja2",
    "pandas",
    "pyarrow",
    "pyspark",
    "monasca_common.api.server",
    "monasca_common.persister.service",
)
_NEEDED_BY_FORMATS = ("fastavro", "monasca_common.kafka.serialization.registry")


class Quickstart(MonascaCommand):
    """Post this machine's metrics to the API while Kafka freezes and a process is killed, and count their rows.

    The quickstart starts Kafka, the API and the persister on this machine, freezes Kafka for longer than the API waits,
    kills the persister with SIGKILL, and prints a table. Then the pipeline computes hourly averages on Spark, generated
    load changes the state of an alarm, and a webhook on this machine receives the notifications. All services run until
    Ctrl-C. The quickstart requires Java 17 or newer. The exit status is 0 if no row was lost or duplicated, the alarm
    went from OK to ALARM and back, and the webhook received each change. With --from prometheus, a Prometheus server
    writes to the API instead, and the exit status is 0 if each of its samples is stored as a row. For example, exit
    without waiting for Ctrl-C:
    monasca-common quickstart --once --seconds 30
    """

    configured = False
    reported = (DevBrokerError, ServiceFailed)
    interrupting = (signal.SIGTERM, signal.SIGHUP)

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument(
            "--once", action="store_true", help="exit after the tables (default: keep running until Ctrl-C)"
        )
        kinds = parser.add_mutually_exclusive_group()
        kinds.add_argument(
            "--formats",
            action="store_true",
            help="also start a schema registry (142 MB to fetch once), write Avro, and store the topic with a sink",
        )
        kinds.add_argument(
            "--from",
            dest="source",
            choices=("machine", "prometheus"),
            default="machine",
            help="prometheus: instead of posting this machine's metrics, start an installed Prometheus that scrapes "
            "itself and writes to the API, and compare its samples with their rows (default: %(default)s)",
        )
        add_line_format(parser)
        parser.add_argument(
            "--seconds",
            type=_seconds,
            default=20.0,
            metavar="S",
            help="duration of posting metrics in seconds, from 5 to 3600 (default: %(default)g)",
        )
        parser.add_argument(
            "--keep-data",
            type=Path,
            metavar="D",
            help="keep the database, the configuration and the logs in this new or empty folder (default: remove them)",
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        out = self.app.stderr if parsed_args.formatter == "json" else self.app.stdout
        self._console = Console(file=unfiltered(out), highlight=False)
        self._stages: list[StageResult] = []
        self._outcome = RunSummary()
        self._interrupted = False
        with contextlib.ExitStack() as stack:
            try:
                status = self._run(parsed_args, stack)
            except KeyboardInterrupt as interrupt:
                status = self.terminated if isinstance(interrupt, Terminated) else 130
                self._report(parsed_args)
                self._say_stopping(parsed_args.keep_data)
            except Exception:
                self._report(parsed_args)
                raise
        if self._interrupted:
            self._say("all services are stopped")
        return status

    @contextlib.contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        """Record the duration of a stage, and its error."""
        began = time.monotonic()
        error: str | None = "interrupted"
        try:
            yield
            error = None
        except ImportError as raised:
            error = remedy(raised)
            raise
        except Exception as raised:
            error = str(raised) if isinstance(raised, self.reported) else repr(raised)
            raise
        finally:
            self._stages.append(StageResult(name, round(time.monotonic() - began, 1), error))

    def _report(self, wanted: argparse.Namespace) -> None:
        """Print the stages so far, and the JSON object if requested."""
        self._outcome = replace(self._outcome, stages=tuple(self._stages))
        if self._stages:
            show_stages(self._stages, self._console)
        if wanted.formatter == "json":
            self.print(json.dumps(asdict(self._outcome)))

    def _say_stopping(self, keep: Path | None) -> None:
        self._interrupted = True
        self._say("stopping; the data is " + (f"kept in {keep}" if keep else "removed"))

    def _run(self, wanted: argparse.Namespace, stack: contextlib.ExitStack) -> int:
        from_prometheus = wanted.source == "prometheus"
        with self._stage("installed packages"):
            for part in (*_NEEDED, *(_NEEDED_BY_FORMATS if wanted.formats else ())):
                importlib.import_module(part)
            if from_prometheus:
                prometheus.check_installed()
        folder = self._folder(wanted.keep_data, stack)
        with self._stage("Kafka"):
            self._say("starting Apache Kafka (fetches its jars, 44 MB, at the first start)")
            kafka = stack.enter_context(KafkaCluster())
        port, evaluator_port, dashboard_port, prometheus_port = free_ports(4)
        configuration, database = write_configuration(
            folder, kafka.bootstrap_servers, port, evaluator_port, dashboard_port
        )
        aggregates.write_specifications(folder)
        sink_file: Path | None = None
        if wanted.formats:
            with self._stage("schema registry"):
                self._say("starting Apicurio Registry (fetches it, 142 MB, at the first start)")
                sink_file = formats.configure(configuration, stack.enter_context(ApicurioRegistry()).url)
        with self._stage("database and topics"):
            self._say("creating the database and the topics")
            named = [word for name in _INITIALIZED for word in ("--service", name)]
            run_command("init", "--execute", "--partitions", str(_PARTITIONS), *named, configuration=configuration)
            if sink_file is not None:
                formats.create_tables(configuration, sink_file)
        supervisor = Supervisor()
        stack.callback(supervisor.close)
        dashboard = f"http://127.0.0.1:{dashboard_port}/"
        hook = webhook.LocalWebhook()
        hook.start()
        stack.callback(hook.stop)

        def started(name: str, *more: Path) -> ServiceProcess:
            service = ServiceProcess(supervisor, name, configuration, *more)
            stack.callback(service.stop)
            return service

        with self._stage("services"):
            self._say("starting the services")
            services = [started(name) for name in ("persister", "api", "dashboard", "audit count", "lag serve")]
            persister, api, board, *_ = services
            if not from_prometheus:
                # Spark starts slowly, so the evaluator is started while metrics are posted.
                evaluator = started("pipeline run evaluate")
                services += evaluator, started("notification", write_notification_configuration(folder))
            sink = None if sink_file is None else started(formats.SINK, sink_file)
            api.wait_until_answers(f"http://127.0.0.1:{port}/")
            board.wait_until_answers(f"{dashboard}healthcheck")
            self._say(f"the dashboard is at {dashboard}")
            if from_prometheus:
                prometheus.start(supervisor, folder, port=prometheus_port, api_port=port)
                self._say(f"Prometheus is at http://127.0.0.1:{prometheus_port}/")
        if from_prometheus:
            with contextlib.suppress(Exception), self._stage("from Prometheus to row"):
                self._compare_with_prometheus(wanted.seconds, persister, prometheus_port, database)
        else:
            run = Run(kafka.node(1), persister, database, port, seconds=wanted.seconds, say=self._say)
            self._say(f"posting this machine's metrics for {wanted.seconds:.0f} s")
            try:
                with self._stage("from POST to row"):
                    run.go()
            finally:
                self._outcome = run.summary()
                if self._outcome.lost:
                    self._find_late(configuration)
                show(self._outcome, self._console)
            self._say("computing hourly averages on Spark (fetches its Kafka connector, 10 MB, at the first start)")
            job = started(aggregates.JOB)
            with contextlib.suppress(Exception), self._stage("alarm"):
                evaluator.wait_until_caught_up(f"http://127.0.0.1:{evaluator_port}/metrics")
                load = GeneratedLoad(supervisor, folder / "load.log")
                self._show_alarm(port, load, hook, services)
            with contextlib.suppress(Exception), self._stage("hourly averages"):
                self._show_averages(job, database)
        if sink is not None:
            services.append(sink)
            with contextlib.suppress(Exception), self._stage("formats and sink"):
                summary = formats.compare(kafka.bootstrap_servers, folder, sink)
                self._outcome = replace(self._outcome, formats=summary)
                show_formats(summary, self._console)
        self._report(wanted)
        if not wanted.once and not any(stage.error for stage in self._stages):
            self._stay_up(port, dashboard, configuration, wanted.keep_data, services)
        return 0 if self._outcome.good else 1

    def _find_late(self, configuration: Path) -> None:
        """Count missing rows as late instead of lost if their messages are unread."""
        with contextlib.suppress(ServiceFailed):
            late = min(self._outcome.lost, unread_messages(configuration))
            self._outcome = replace(self._outcome, lost=self._outcome.lost - late, late=late)

    def _compare_with_prometheus(self, seconds: float, persister: ServiceProcess, port: int, database: Path) -> None:
        self._say(f"Prometheus scrapes itself for {seconds:.0f} s, and the persister is killed halfway through")
        time.sleep(seconds / 2)
        persister.kill_workers()
        time.sleep(seconds / 2)
        summary = prometheus.compare(port, database)
        self._outcome = replace(self._outcome, prometheus=summary)
        show_prometheus(summary, self._console)

    def _show_averages(self, job: ServiceProcess, database: Path) -> None:
        averages = aggregates.averages_of(job, database)
        self._outcome = replace(self._outcome, aggregates=len(averages))
        aggregates.show(averages, self._console)

    def _show_alarm(
        self, port: int, load: GeneratedLoad, hook: webhook.LocalWebhook, services: Sequence[ServiceProcess]
    ) -> None:
        def check() -> None:
            for service in services:
                service.check()

        self._say(f"defining an alarm: {alarm.EXPRESSION}")
        self._say(f"the process {PROCESS_NAME} is idle, uses one core until the state is ALARM, and is idle again")
        try:
            summary = alarm.AlarmRun(port, load, hook, check=check, say=self._say).go()
        finally:
            load.end()
        self._outcome = replace(self._outcome, alarm=summary)
        alarm.show(summary, self._console)
        webhook.show(summary.notifications, self._console)
        self._say("the webhook intentionally refuses the first attempt of an ALARM; the second attempt has the same id")

    def _folder(self, keep: Path | None, stack: contextlib.ExitStack) -> Path:
        if keep is None:
            folder = Path(tempfile.mkdtemp(prefix="monasca-quickstart-"))
            stack.callback(self._remove_unless_failed, folder)
            return folder
        if keep.exists() and (not keep.is_dir() or any(keep.iterdir())):
            raise ServiceFailed(f"--keep-data {keep} is not an empty folder: name a new folder")
        try:
            keep.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ServiceFailed(
                f"--keep-data {keep} cannot be created ({error.strerror}): name another folder"
            ) from None
        return keep.absolute()

    def _remove_unless_failed(self, folder: Path) -> None:
        if self._interrupted or self._outcome.good:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            self._say(f"the run failed; logs and data are kept in {folder}")

    def _stay_up(
        self, port: int, dashboard: str, configuration: Path, keep: Path | None, services: Sequence[ServiceProcess]
    ) -> None:
        today = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT00:00:00Z")
        names = ("up",) if self._outcome.prometheus else ("mem.usable_mb", "cpu.percent_agg")
        try:
            self._say("All services run until Ctrl-C. Try:")
            self._say(f"  {dashboard} is the dashboard; open it in a browser")
            for path in (
                "/v2.0/metrics/names",
                *(f"/v2.0/metrics/measurements?name={name}&start_time={today}" for name in names),
                *(("/v2.0/alarms", "/v2.0/notifications") if self._outcome.alarm else ()),
            ):
                self._say(f"  curl 'http://127.0.0.1:{port}{path}'")
            self._say(f"  configuration and logs: {configuration.parent}")
            while True:
                for service in services:
                    service.check()
                threading.Event().wait(1)
        except KeyboardInterrupt:
            self._say_stopping(keep)

    def _say(self, text: str) -> None:
        self._console.print(text, markup=False, soft_wrap=True)


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 5 <= seconds <= 3600:
        raise argparse.ArgumentTypeError(f"{text} is out of range: use 5 to 3600 seconds")
    return seconds
