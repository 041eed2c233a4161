# SPDX-License-Identifier: Apache-2.0
"""Random definitions and measurements, in random batches with Kafka, Spark and the database: the transitions
equal those of a simple reference evaluator."""

from random import Random
from unittest import mock

from monasca_common.alarms.expression import FUNCTIONS, And, Expression, Or, SubExpression
from monasca_common.kafka.message import Record
from monasca_common.pipeline.evaluate import watermark
from monasca_common.tests.functional.pipeline.test_evaluate import MINUTE_MS, EvaluateCase
from monasca_common.tests.periodic import periodic
from monasca_common.tests.unit.alarms import reference
from monasca_common.tests.unit.alarms.reference import Measurement
from monasca_common.tests.unit.alarms.strategies import text_of
from monasca_common.tests.unit.alarms.test_evaluation import in_order_of_history
from monasca_common.tests.unit.pipeline.pipeline_case import HOUR_MS, envelope

DEFINITIONS = 40
BATCHES = 6
END_MS = 24 * MINUTE_MS
DELAY_MS = 5_000


class RandomEvaluationTest(EvaluateCase):
    def test_the_transitions_are_those_of_the_plain_reference(self):
        random = Random(20)
        self.base_ms = (self.created_ms // HOUR_MS + 2) * HOUR_MS
        watermarks = [*sorted(random.sample(range(1000, 16 * MINUTE_MS), BATCHES - 1)), END_MS]
        expressions = [_expression(random, f"m{number}") for number in range(DEFINITIONS)]
        for number, expression in enumerate(expressions):
            self.define(text_of(expression), name=f"d{number}")
        batches = [_batches(random, expression, watermarks) for expression in expressions]
        job = self.evaluation(one_task_offsets=0, min_partitions=3, delay_seconds=DELAY_MS // 1000)
        # The clock jumps between batches, and on a busy machine a batch can take longer than such a jump.
        with mock.patch.multiple(watermark, LONGEST_SILENCE_MS=2**52, LONGEST_STEP_MS=2**52):
            for position, watermark_ms in enumerate(watermarks):
                self.clock.now_ms = self.base_ms + watermark_ms
                texts = [self.text(number, one) for number, own in enumerate(batches) for one in own[position][0]]
                random.shuffle(texts)
                self.publish(list(map(Record, texts)))
                job.step()
        found = self.state_changes()
        reported = 0
        for number, (expression, own) in enumerate(zip(expressions, batches, strict=True)):
            changes = in_order_of_history(reference.changes(expression, own, DELAY_MS))
            expected = [each._replace(timestamp_ms=self.base_ms + each.timestamp_ms) for each in changes]
            self.assertEqual(expected, found.get((f"d{number}", None), []), (text_of(expression), own))
            reported += len(expected)
        self.assertGreater(reported, 2 * DEFINITIONS)

    def text(self, number, one):
        meta = {"tenantId": "t", "region": "r"}
        dimensions = {"position": str(one.sub)}
        return envelope(f"m{number}", self.base_ms + one.time_ms, one.value, dimensions=dimensions, meta=meta)


def _expression(random, name):
    """Generate an expression of one or two sub-expressions."""
    subs = [
        SubExpression(
            random.choice(FUNCTIONS),
            name,
            (("position", str(position)),),
            random.random() < 0.3,
            random.choice(["LT", "LTE", "GT", "GTE"]),
            random.choice([-1.5, 0.0, 1.0, 2.0, 2.5]),
            random.choice([60, 60, 120, 180]),
            random.choice([1, 1, 2, 3]),
        )
        for position in range(random.choice([1, 1, 2]))
    ]
    return Expression(subs[0] if len(subs) == 1 else random.choice([And, Or])(tuple(subs)))


def _batches(random, expression, watermarks):
    """Generate (measurements, watermark) of each batch. The first batch has a series for each sub-expression. The
    measurements of a single sub-expression can be late."""
    positions = len(expression.sub_expressions)
    values = [-2.0, -1.0, 0.0, 1.0, 2.0, 3.0, 0.1]
    batches = [([Measurement(each, random.choice(values), each) for each in range(positions)], watermarks[0])]
    batches += [([], each) for each in watermarks[1:]]
    for time_ms in sorted(random.sample(range(10, 16 * MINUTE_MS), random.randrange(40))):
        one = Measurement(time_ms, random.choice(values), random.randrange(positions))
        first = next(number for number, each in enumerate(watermarks) if each >= time_ms)
        late = random.randrange(2) if positions == 1 else 0
        batches[min(first + late, len(watermarks) - 1)][0].append(one)
    return batches


@periodic("RandomEvaluationTest runs the same test on SQLite")
class PostgresqlRandomEvaluationTest(RandomEvaluationTest):
    database = "postgresql"
