# SPDX-License-Identifier: Apache-2.0
"""An alarm on generated load: defined over HTTP, and shown as its history with the measured values."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from monasca_common.quickstart.load import PROCESS_NAME, GeneratedLoad
from monasca_common.quickstart.poster import PostedBulk, Poster
from monasca_common.quickstart.services import ServiceFailed
from monasca_common.quickstart.webhook import LocalWebhook, ReceivedNotification

METRIC = "process.cpu_perc"
EXPRESSION = f"last({METRIC}{{process_name={PROCESS_NAME}}}) > 10"
_NAME = "Load of the quickstart"
_DIMENSIONS = {"process_name": PROCESS_NAME}
_STATES = ("OK", "ALARM", "OK")
_BETWEEN_SAMPLES_SECONDS = 1.0
_LEAST_SECONDS = 2.0  # time in each state, long enough for the table to show it
_STATE_SECONDS = 60.0
_FINISH_SECONDS = 60.0
_ANSWER_SECONDS = 30.0
_BAR_WIDTH = 20
_COLOURS = {"OK": "green", "ALARM": "bold red"}


@dataclass(frozen=True, slots=True)
class AlarmMoment:
    """A point in time. ``value``: percent of a core. ``change``: the change of the alarm's state."""

    time: str
    value: float | None
    state: str
    change: str | None


@dataclass(frozen=True, slots=True)
class AlarmSummary:
    """``history``: the alarm's states in order. ``posted``: number of measurements."""

    expression: str
    alarm_id: str | None
    history: tuple[str, ...]
    moments: tuple[AlarmMoment, ...]
    posted: int
    seconds: float
    notifications: tuple[ReceivedNotification, ...]

    @property
    def good(self) -> bool:
        received = sorted(each.state for each in self.notifications if each.accepted)
        return self.history == _STATES and received == sorted(_STATES)


class LocalApi:
    """The API on this machine. Raises `ServiceFailed`."""

    def __init__(self, port: int) -> None:
        self._base = f"http://127.0.0.1:{port}"

    def get(self, path: str, **query: str) -> list[dict[str, Any]]:
        """Return the elements of a list."""
        answer = self._answer(urllib.request.Request(f"{self._base}{path}?{urllib.parse.urlencode(query)}"))
        elements: list[dict[str, Any]] = answer["elements"]
        return elements

    def post(self, path: str, content: dict[str, Any]) -> dict[str, Any]:
        headers = {"Content-Type": "application/json"}
        return self._answer(urllib.request.Request(f"{self._base}{path}", json.dumps(content).encode(), headers))

    def _answer(self, request: urllib.request.Request) -> dict[str, Any]:
        try:
            with urllib.request.urlopen(request, timeout=_ANSWER_SECONDS) as answer:
                found: dict[str, Any] = json.load(answer)
                return found
        except urllib.error.HTTPError as error:
            text = error.read(500).decode(errors="replace")
            raise ServiceFailed(f"{request.get_method()} {request.selector}: {error.code} {text}") from None
        except OSError as error:
            raise ServiceFailed(f"{request.get_method()} {request.selector}: {error}") from None


class AlarmRun:
    """Starts and stops the load according to the alarm's state. ``webhook``: receives each change. ``check``: raises if
    a service has ended."""

    def __init__(
        self,
        port: int,
        load: GeneratedLoad,
        webhook: LocalWebhook,
        *,
        check: Callable[[], None],
        say: Callable[[str], None],
    ) -> None:
        self._api = LocalApi(port)
        self._load = load
        self._webhook = webhook
        self._check = check
        self._say = say
        self._poster = Poster("127.0.0.1", port, threads=1)
        self._posted: list[PostedBulk] = []

    def go(self) -> AlarmSummary:
        started = time.monotonic()
        definition_id = self._define()
        self._change_states(definition_id)
        self._load.stop()
        self._poster.finish(_FINISH_SECONDS)
        if self._poster.refused:
            raise ServiceFailed(f"the API refused a request: {self._poster.refused[0]}")
        return self._summary(definition_id, started)

    def _define(self) -> str:
        method = {"name": _NAME, "type": "WEBHOOK", "address": self._webhook.url}
        method_id = self._api.post("/v2.0/notification-methods", method)["id"]
        definition = {
            "name": _NAME,
            "expression": EXPRESSION,
            "severity": "LOW",
            "alarm_actions": [method_id],
            "ok_actions": [method_id],
        }
        return str(self._api.post("/v2.0/alarm-definitions", definition)["id"])

    def _change_states(self, definition_id: str) -> None:
        for state, prepare in zip(_STATES, (self._load.stop, self._load.start, self._load.stop), strict=True):
            prepare()
            if not self._wait_for(state, definition_id):
                self._say(f"the alarm did not become {state} within {_STATE_SECONDS:.0f} s")
                return
            self._say(f"the alarm is {state}")

    def _wait_for(self, state: str, definition_id: str) -> bool:
        began = time.monotonic()
        while (elapsed := time.monotonic() - began) < _STATE_SECONDS:
            time.sleep(_BETWEEN_SAMPLES_SECONDS)
            self._post_sample()
            self._check()
            alarms = self._api.get("/v2.0/alarms", alarm_definition_id=definition_id)
            if elapsed >= _LEAST_SECONDS and [each["state"] for each in alarms] == [state]:
                return True
        return False

    def _post_sample(self) -> None:
        time_ms = time.time_ns() // 1_000_000
        metric = {"name": METRIC, "dimensions": _DIMENSIONS, "timestamp": time_ms, "value": self._load.percent()}
        bulk = PostedBulk(len(self._posted), time_ms, "/v2.0/metrics", [metric], 1)
        self._posted.append(bulk)
        self._poster.post(bulk)

    def _summary(self, definition_id: str, started: float) -> AlarmSummary:
        alarms = self._api.get("/v2.0/alarms", alarm_definition_id=definition_id)
        alarm_id = alarms[0]["id"] if alarms else None
        history = self._api.get(f"/v2.0/alarms/{alarm_id}/state-history") if alarm_id else []
        return AlarmSummary(
            EXPRESSION,
            alarm_id,
            tuple(each["new_state"] for each in history),
            moments(self._measurements(), history),
            len(self._posted),
            round(time.monotonic() - started, 1),
            self._received(len(history)),
        )

    def _received(self, changes: int) -> tuple[ReceivedNotification, ...]:
        received = self._webhook.wait_for(changes, _FINISH_SECONDS)
        if sum(each.accepted for each in received) < changes:
            self._say(f"the webhook did not receive {changes} changes within {_FINISH_SECONDS:.0f} s")
        return received

    def _measurements(self) -> list[list[Any]]:
        """Return the measurements from the API once all are stored."""
        since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._posted[0].time_ms // 1000))
        deadline = time.monotonic() + _FINISH_SECONDS
        while True:
            elements = self._api.get("/v2.0/metrics/measurements", name=METRIC, start_time=since)
            found: list[list[Any]] = [row for element in elements for row in element["measurements"]]
            if len(found) >= len(self._posted):
                return found
            if time.monotonic() > deadline:
                raise ServiceFailed(f"{len(self._posted)} measurements were posted, but only {len(found)} are stored")
            time.sleep(_BETWEEN_SAMPLES_SECONDS)


def moments(measurements: Sequence[Sequence[Any]], history: Sequence[dict[str, Any]]) -> tuple[AlarmMoment, ...]:
    """Merge measurements and changes by time; all times are ISO 8601 in UTC with milliseconds, so their strings sort by
    time."""
    values = {time: value for time, value, *_ in measurements}
    changes = {each["timestamp"]: each for each in history}
    found, state = [], "none yet"
    for moment in sorted({*values, *changes}):
        change = None
        if moment in changes:
            state = changes[moment]["new_state"]
            change = f"{changes[moment]['old_state']} -> {state}"
        found.append(AlarmMoment(moment, values.get(moment), state, change))
    return tuple(found)


def show(summary: AlarmSummary, console: Console) -> None:
    title = f"An alarm on generated load\n{summary.expression}"
    table = Table(title=title, title_justify="left")
    table.add_column("time (UTC)", no_wrap=True)
    table.add_column("measured", justify="right", no_wrap=True)
    table.add_column("", width=_BAR_WIDTH, no_wrap=True)
    table.add_column("alarm", no_wrap=True)
    for each in summary.moments:
        value = each.value or 0.0
        bar = "█" * min(_BAR_WIDTH, round(value / 100 * _BAR_WIDTH))
        measured = "" if each.value is None else f"{each.value:.1f} %"
        table.add_row(each.time[11:-1], measured, bar, each.change or each.state, style=_COLOURS.get(each.state, "dim"))
    console.print(table)
