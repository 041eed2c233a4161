# SPDX-License-Identifier: Apache-2.0
"""``monasca-common quickstart``: from HTTP to rows and alarms with this machine's metrics and failures on purpose."""

import argparse
import contextlib
import datetime
import importlib.util
import json
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from monasca_common.cli.command import MonascaCommand, add_line_format
from monasca_common.cli.terminal import obeyed
from monasca_common.devbroker import DevBrokerError
from monasca_common.devbroker.ports import free_ports
from monasca_common.devbroker.supervisor import Supervisor
from monasca_common.kafka.extras import remedy
from monasca_common.quickstart import aggregates, alarm, webhook
from monasca_common.quickstart.brokers import PARTITIONS, Broker, java_is_missing, mock, real_kafka
from monasca_common.quickstart.load import MOST_SECONDS, PROCESS_NAME, OwnLoad
from monasca_common.quickstart.run import Run, RunProgress
from monasca_common.quickstart.services import (
    TOPICS,
    ServiceFailed,
    ServiceProcess,
    make_folder,
    run_command,
    write_configuration,
    write_notification_configuration,
)
from monasca_common.quickstart.table import RunSummary, StageResult, show, show_stages

_DEAD_LETTERS = tuple(f"{topic}.dlq" for topic in TOPICS)
_SERVICES = {
    "persister": "the persister",
    "api": "the API",
    "pipeline run evaluate": "the evaluator",
    "notification": "the notification service",
    "audit count": "the audit counter",
    "lag serve": "the lag service",
    "dashboard": "the dashboard",
    aggregates.JOB: "Spark",
}
_SAY_EVERY_SECONDS = 5.0
_NEEDED = ("psutil", "monasca_common.api.server", "monasca_common.persister.service")


class Quickstart(MonascaCommand):
    """Post this machine's own metrics to the API and count their rows, in spite of lost answers and a killed process.

    The quickstart starts a real Kafka, the API and the persister on this machine, loses some of Kafka's
    acknowledgements on purpose, kills the persister with SIGKILL, and prints a table. Then the pipeline computes hourly
    averages on Spark, generated load changes an alarm, a webhook on this machine is notified, and everything keeps
    running until Ctrl-C. Without Java, it uses librdkafka's in-process broker. The exit status is 0 if no row was lost
    or duplicate, the alarm went from OK to ALARM and back, and the webhook received each change.
    For example, without waiting for Ctrl-C:
    monasca-common quickstart --once --seconds 30
    """

    configured = False

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument(
            "--once", action="store_true", help="end after the tables (default: keep running until Ctrl-C)"
        )
        add_line_format(parser)
        parser.add_argument(
            "--seconds",
            type=_seconds,
            default=20.0,
            metavar="S",
            help="how long to post metrics, 5 to 3600 seconds (default: %(default)g)",
        )
        parser.add_argument(
            "--keep-data",
            type=Path,
            metavar="D",
            help="keep the database, the configuration and the logs in this empty or new folder (default: remove them)",
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        out = self.app.stderr if parsed_args.formatter == "json" else self.app.stdout
        self._console = Console(file=obeyed(out), highlight=False)
        self._running: list[str] = []
        self._stages: list[StageResult] = []
        self._outcome = RunSummary()
        self._interrupted = False
        try:
            for part in _NEEDED:
                importlib.import_module(part)  # what is not installed is reported before anything starts
        except ImportError as error:
            if parsed_args.formatter == "json":
                self._stages.append(StageResult("installed packages", 0.0, remedy(error)))
                self._report(parsed_args)
            raise
        try:
            with _ends_at_signals(), contextlib.ExitStack() as stack:
                try:
                    status = self._run(parsed_args, stack)
                except KeyboardInterrupt:
                    status = 130
                    self._report(parsed_args)
                    self._say_what_stops(parsed_args.keep_data)
                except Exception as error:
                    self._report(parsed_args)
                    if not isinstance(error, DevBrokerError | ServiceFailed):
                        raise
                    status = self.complain(str(error))
        except KeyboardInterrupt:
            self._say("interrupted again; the services were killed")
            return 130
        if self._interrupted:
            self._say("everything is stopped")
        return status

    @contextlib.contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        """Record the duration of a stage, and its error."""
        began = time.monotonic()
        error: str | None = "interrupted"
        try:
            yield
            error = None
        except Exception as raised:
            error = str(raised) if isinstance(raised, DevBrokerError | ServiceFailed) else repr(raised)
            raise
        finally:
            self._stages.append(StageResult(name, round(time.monotonic() - began, 1), error))

    def _report(self, wanted: argparse.Namespace) -> None:
        """Print the stages so far, and the JSON object."""
        self._outcome = replace(self._outcome, stages=tuple(self._stages))
        if self._stages:
            show_stages(self._stages, self._console)
        if wanted.formatter == "json":
            self.print(json.dumps(self._outcome.as_json()))

    def _say_what_stops(self, keep: Path | None) -> None:
        self._interrupted = True
        *others, last = self._running[::-1] or ["nothing"]
        what = f"{', '.join(others)} and {last}" if others else last
        self._say(f"stopping {what}; the data is " + (f"kept in {keep}" if keep else "removed"))

    def _run(self, wanted: argparse.Namespace, stack: contextlib.ExitStack) -> int:
        folder = self._folder(wanted.keep_data, stack)
        with self._stage("Kafka"):
            broker = stack.enter_context(self._broker())
        self._outcome = replace(self._outcome, broker=broker.kind)
        port, evaluator_port, dashboard_port = free_ports(3)
        configuration, database = write_configuration(folder, broker, port, evaluator_port, dashboard_port)
        aggregates.write_specifications(folder)
        with self._stage("database and topics"):
            self._make_what_is_missing(broker, configuration)
        supervisor = Supervisor()
        stack.callback(supervisor.close)
        dashboard = f"http://127.0.0.1:{dashboard_port}/"
        evaluator: ServiceProcess | None = None
        hook: webhook.LocalWebhook | None = None
        with self._stage("services"):
            self._say("starting the persister and the API")
            persister, api = (self._started(name, supervisor, configuration, stack) for name in ("persister", "api"))
            services = [persister, api]
            if self._has_spark(broker):  # it starts slowly, while metrics are posted
                evaluator = self._started("pipeline run evaluate", supervisor, configuration, stack)
                services.append(evaluator)
                hook = self._notified(supervisor, configuration, stack, services)
            api.wait_until_answers(f"http://127.0.0.1:{port}/")
            if self._has_dashboard(broker):
                for name in ("audit count", "lag serve", "dashboard"):
                    services += [self._started(name, supervisor, configuration, stack)]
                services[-1].wait_until_answers(f"{dashboard}healthcheck")
                self._say(f"the dashboard is at {dashboard}")
        self._post(Run(broker, persister, database, port, seconds=wanted.seconds), wanted.seconds)
        if evaluator is not None:
            self._say("computing hourly averages on Spark (fetches its Kafka connector, 10 MB, at the first start)")
            job = self._started(aggregates.JOB, supervisor, configuration, stack)
            with contextlib.suppress(Exception), self._stage("alarm"):
                evaluator.wait_until_caught_up(f"http://127.0.0.1:{evaluator_port}/metrics")
                self._alarm(port, hook, services)
            with contextlib.suppress(Exception), self._stage("hourly averages"):
                self._show_averages(job, database)
        self._report(wanted)
        failed = any(stage.error for stage in self._stages)
        if not wanted.once and not failed:
            self._stay_up(port, dashboard, configuration, self._outcome, wanted.keep_data, *services)
        return 0 if self._outcome.good else 1

    def _post(self, run: Run, seconds: float) -> None:
        self._say(f"posting this machine's metrics for {seconds:.0f} s")
        try:
            with self._stage("from POST to row"):
                run.go(_ProgressLines(self._say))
        finally:
            self._outcome = run.summary()
            show(self._outcome, self._console)

    def _make_what_is_missing(self, broker: Broker, configuration: Path) -> None:
        if broker.kind == "kafka":
            self._say("creating the database and the topics")
            needed = ["api", "persister", "pipeline", "lag", *(["notification"] if webhook.why_not() is None else [])]
            named = [word for name in needed for word in ("--service", name)]
            run_command("init", "--execute", "--partitions", str(PARTITIONS), *named, configuration=configuration)
        else:
            self._say("creating the database")
            run_command("db", "upgrade", configuration=configuration)

    def _started(
        self, name: str, supervisor: Supervisor, configuration: Path, stack: contextlib.ExitStack, *more: Path
    ) -> ServiceProcess:
        self._running.append(_SERVICES[name])
        service = ServiceProcess(supervisor, name, configuration, *more)
        stack.callback(service.stop)
        return service

    def _has_dashboard(self, broker: Broker) -> bool:
        installed = importlib.util.find_spec("jinja2") is not None
        missing = "Jinja2 is not installed (monasca-common[dashboard])" if not installed else None
        if broker.kind != "kafka":
            missing = "needs Java and a real Kafka"
        if missing is not None:
            self._say(f"no dashboard: {missing}")
        return missing is None

    def _has_spark(self, broker: Broker) -> bool:
        missing = aggregates.why_not() if broker.kind == "kafka" else "Spark needs Java and a real Kafka"
        if missing is not None:
            self._say(f"no hourly averages and no alarm: {missing}")
        return missing is None

    def _notified(
        self,
        supervisor: Supervisor,
        configuration: Path,
        stack: contextlib.ExitStack,
        services: list[ServiceProcess],
    ) -> webhook.LocalWebhook | None:
        missing = webhook.why_not()
        if missing is not None:
            self._say(f"no notifications: {missing}")
            return None
        hook = webhook.LocalWebhook()
        hook.start()
        stack.callback(hook.stop)
        own = write_notification_configuration(configuration.parent)
        services.append(self._started("notification", supervisor, configuration, stack, own))
        return hook

    def _show_averages(self, job: ServiceProcess, database: Path) -> None:
        averages = aggregates.averages_of(job, database)
        self._running.remove(_SERVICES[aggregates.JOB])
        self._outcome = replace(self._outcome, aggregates=len(averages))
        aggregates.show(averages, self._console)

    def _alarm(self, port: int, hook: webhook.LocalWebhook | None, services: Sequence[ServiceProcess]) -> None:
        def check() -> None:
            for service in services:
                service.check()

        self._say(f"defining an alarm: {alarm.EXPRESSION}")
        self._say(
            f"the process {PROCESS_NAME} is idle, then uses one core until the alarm is in ALARM "
            f"(at most {MOST_SECONDS:.0f} s), then is idle again"
        )
        with OwnLoad() as load:
            summary = alarm.AlarmRun(port, load, hook, check=check, say=self._say).go()
        self._outcome = replace(self._outcome, alarm=summary)
        alarm.show(summary, self._console)
        if summary.notifications is not None:
            webhook.show(summary.notifications, self._console)
            self._say("the webhook refuses the first attempt of an ALARM on purpose; the second one has the same id")
        if hook is not None:
            hook.tell(self._say_received)

    def _say_received(self, received: webhook.ReceivedNotification) -> None:
        answer = f"answered {received.answers[-1]}"
        self._say(f"the webhook received {received.state}, id {received.id}, attempt {received.attempts}, {answer}")

    def _broker(self) -> contextlib.AbstractContextManager[Broker]:
        missing = java_is_missing()
        if missing is None:
            self._say("starting Apache Kafka (fetches its jars, 44 MB, at the first start)")
            self._running.append("Apache Kafka")
            return real_kafka()
        self._say(f"no real Kafka: {missing}. Using librdkafka's in-process broker, which loses no answers.")
        self._running.append("the in-process broker")
        return mock(TOPICS + _DEAD_LETTERS)

    def _folder(self, keep: Path | None, stack: contextlib.ExitStack) -> Path:
        if keep is None:
            folder = Path(tempfile.mkdtemp(prefix="monasca-quickstart-"))
            stack.callback(self._remove_unless_failed, folder)
            return folder
        if keep.exists() and (not keep.is_dir() or any(keep.iterdir())):
            raise ServiceFailed(f"--keep-data {keep} is not an empty folder: name a new one")
        try:
            make_folder(keep)
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
        self,
        port: int,
        dashboard: str,
        configuration: Path,
        outcome: RunSummary,
        keep: Path | None,
        *services: ServiceProcess,
    ) -> None:
        base = f"http://127.0.0.1:{port}"
        today = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT00:00:00Z")
        self._say("Everything keeps running until Ctrl-C. Try:")
        if "dashboard" in (service.name for service in services):
            self._say(f"  {dashboard} in a browser: the dashboard")
        alarm_id = outcome.alarm and outcome.alarm.alarm_id
        history = f"/v2.0/alarms/{alarm_id}/state-history"
        of_alarm = ("/v2.0/alarms", history, "/v2.0/notifications") if alarm_id else ()
        for path in (
            *of_alarm,
            "/healthcheck",
            "/v2.0/metrics/names",
            "/v2.0/metrics?name=mem.usable_mb",
            f"/v2.0/metrics/measurements?name=mem.usable_mb&start_time={today}",
            f"/v2.0/metrics/measurements?name=cpu.percent_agg&start_time={today}",
            f"/v2.0/metrics/statistics?name=cpu.percent&statistics=avg,max&merge_metrics=true&start_time={today}",
        ):
            self._say(f"  curl '{base}{path}'")
        if alarm_id:
            by_hand = "curl -X PATCH -H 'Content-Type: application/json' -d '{\"state\": \"ALARM\"}'"
            self._say(f"  {by_hand} '{base}/v2.0/alarms/{alarm_id}'")
        self._say(f"  configuration and logs: {configuration.parent}")
        try:
            while True:
                for service in services:
                    service.check()
                threading.Event().wait(1)
        except KeyboardInterrupt:
            self._say_what_stops(keep)

    def _say(self, text: str) -> None:
        self._console.print(text, markup=False, soft_wrap=True)


class _ProgressLines:
    """Prints a line every five seconds, and each note."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._said_at = 0.0
        self._noted = 0

    def __call__(self, progress: RunProgress) -> None:
        for note in progress.notes[self._noted :]:
            self._say(note)
        self._noted = len(progress.notes)
        if progress.elapsed_seconds - self._said_at >= _SAY_EVERY_SECONDS:
            self._said_at = progress.elapsed_seconds
            self._say(
                f"{progress.elapsed_seconds:.0f} s: {progress.posted:,} posted, {progress.acknowledged:,} acknowledged"
            )


@contextlib.contextmanager
def _ends_at_signals() -> Iterator[None]:
    """Stop in order at SIGTERM and SIGHUP, as at Ctrl-C."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = {signum: signal.signal(signum, interrupt) for signum in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 5 <= seconds <= 3600:
        raise argparse.ArgumentTypeError(f"{text} is out of range: give 5 to 3600 seconds")
    return seconds
