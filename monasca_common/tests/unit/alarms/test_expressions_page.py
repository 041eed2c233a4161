# SPDX-License-Identifier: Apache-2.0
"""What the page on expressions says is what happens."""

import re
from pathlib import Path

from oslotest import base

from monasca_common.alarms.expression import ExpressionError, parse
from monasca_common.tests.unit.alarms.evaluator import Evaluator

PAGE = Path(__file__).parents[4] / "doc" / "source" / "user" / "alarm_expressions.rst"
NOON_MS = 12 * 3_600_000


def blocks():
    found = re.findall(r"code-block:: text\n\n((?:   .*\n|\n)+)", PAGE.read_text())
    return [[line.strip() for line in block.strip().splitlines()] for block in found]


def time_ms(text):
    hours, minutes, seconds = map(int, text.split(":"))
    return ((hours * 60 + minutes) * 60 + seconds) * 1000


class ExpressionsPageTest(base.BaseTestCase):
    def test_the_examples_are_expressions(self):
        first, _, examples, *_ = blocks()

        self.assertEqual(4, len([parse(text) for text in examples]))
        self.assertEqual(3, parse(first[0]).sub_expressions[0].periods)

    def test_the_error_is_what_is_said(self):
        text, message = blocks()[3]

        self.assertEqual(message, str(self.assertRaises(ExpressionError, parse, text)))

    def test_the_states_change_when_the_page_says(self):
        lines = iter(blocks()[4])
        measured = [line.split() for line in iter(lambda: next(lines), "")]
        readings = [(time_ms(time), float(value), 0) for time, value in measured]
        expected, found = [], []
        for line in filter(None, lines):
            if not line[0].isdigit():
                evaluator = Evaluator(parse(line), evaluated_to_ms=NOON_MS + 30_000)
                found += evaluator.batch(readings, NOON_MS + 600_000)
            else:
                time, state = line.split()
                expected.append((time_ms(time), state))

        self.assertEqual(8, len(expected))
        self.assertEqual(expected, [(each.timestamp_ms, each.new_state) for each in found])
