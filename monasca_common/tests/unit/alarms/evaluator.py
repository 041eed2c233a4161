# SPDX-License-Identifier: Apache-2.0
"""Run the pure functions in the order of the job: merge a batch, evaluate, remove old windows."""

from dataclasses import replace

from monasca_common.alarms.evaluation import AlarmState, EvaluationSpan, Measured, evaluate, needed_from_ms
from monasca_common.alarms.partials import WindowPartial, runs
from monasca_common.models.readings import Reading

DELAY_MS = 30_000


def window_start_ms(sub, timestamp_ms):
    length_ms = sub.period * 1000
    return int(timestamp_ms // length_ms) * length_ms


class Evaluator:
    def __init__(self, expression, *, evaluated_to_ms=0, delay_ms=DELAY_MS):
        self.expression = expression
        self.alarm = AlarmState.new(expression)
        self.windows = [{} for _ in expression.sub_expressions]
        self.progress = EvaluationSpan(evaluated_to_ms, evaluated_to_ms, evaluated_to_ms, delay_ms)
        self.transitions = []
        self._offset = 0

    def batch(self, measured, watermark_ms, *, seen_ms=None):
        """Merge and evaluate a batch, and return the transitions.

        ``measured``: (time in ms, value, position of the sub-alarm), in order of arrival.
        """
        readings = [[] for _ in self.windows]
        for time_ms, value, position in measured:
            readings[position].append(Reading(time_ms, 0, self._offset, value))
            self._offset += 1
        self.progress = replace(
            self.progress, watermark_ms=watermark_ms, seen_ms=watermark_ms if seen_ms is None else seen_ms
        )
        inputs = [self._merge(position, found) for position, found in enumerate(readings)]
        result = evaluate(self.expression, self.alarm, inputs, self.progress)
        self.alarm = result.alarm
        self.progress = replace(self.progress, evaluated_to_ms=watermark_ms)
        self.transitions += result.transitions
        return result.transitions

    def _merge(self, position, readings):
        sub, windows = self.expression.sub_expressions[position], self.windows[position]
        if sub.function == "last":
            return Measured(readings=runs(sub, readings))
        needed_ms = needed_from_ms(sub, self.progress.evaluated_to_ms, self.progress.delay_ms)
        for start_ms in [start for start in windows if start < needed_ms]:
            del windows[start_ms]
        by_window = {}
        for reading in readings:
            by_window.setdefault(window_start_ms(sub, reading.timestamp_ms), []).append(reading)
        for start_ms, some in by_window.items():
            partial = WindowPartial.of(sub, some)
            windows[start_ms] = windows[start_ms].merge(partial, sub) if start_ms in windows else partial
        return Measured(windows)
