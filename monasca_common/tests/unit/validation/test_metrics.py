# SPDX-License-Identifier: Apache-2.0
"""Each row of the tables is the result of the same call in monasca-common 3.8.0."""

import math
import subprocess
import sys
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from oslotest import base

from monasca_common.validation import metrics
from monasca_common.validation.metrics import (
    InvalidDimensionKey,
    InvalidDimensionValue,
    InvalidMetric,
    InvalidMetricName,
    InvalidTimeStamp,
    InvalidValue,
    InvalidValueMeta,
)

CPU: dict[str, Any] = {"name": "cpu.idle_perc", "value": 12.5, "timestamp": 1_700_000_000_000}

# {a call: [(its argument, the error that it raises)]}
TABLES: dict[Callable[[Any], None], list[tuple[Any, Any]]] = {
    metrics.validate_name: [
        ("cpu.idle_perc", None),
        ("n" * 255, None),
        ("é" * 255, None),
        ("tab\tand\nline", None),
        ("_hidden", None),
        ("nul\0", None),
        ("\ud800", None),
        ("", InvalidMetricName),
        ("n" * 256, InvalidMetricName),
        (7, InvalidMetricName),
        (None, InvalidMetricName),
        (b"cpu", InvalidMetricName),
        *((f"a{character}", InvalidMetricName) for character in '<>={},"\\;&() '),
    ],
    metrics.validate_value: [
        (0, None),
        (-1.5, None),
        (True, None),
        (10**300, None),
        (5e-324, None),
        (10**400, InvalidValue),
        (math.nan, InvalidValue),
        (math.inf, InvalidValue),
        (-math.inf, InvalidValue),
        ("1", InvalidValue),
        (None, InvalidValue),
        (Decimal(1), InvalidValue),
    ],
    metrics.validate_timestamp: [
        (1_700_000_000_000, None),
        (0.5, None),
        (-1, None),
        ("1700000000000", InvalidTimeStamp),
        (None, InvalidTimeStamp),
    ],
    metrics.validate_dimension_key: [
        ("hostname", None),
        ("k" * 255, None),
        ("a key (of two)", None),
        ("a_b", None),
        ("", InvalidDimensionKey),
        ("k" * 256, InvalidDimensionKey),
        ("_hidden", InvalidDimensionKey),
        (1, InvalidDimensionKey),
        *((f"a{character}", InvalidDimensionKey) for character in '<>={},"\\;&'),
    ],
    metrics.validate_dimensions: [
        ({}, None),
        ({"hostname": "web 1 (blue)", "_of": "x"}, InvalidDimensionKey),
        ({"hostname": "_web", "a": "v" * 255}, None),
        ({"hostname": ""}, InvalidDimensionValue),
        ({"hostname": "v" * 256}, InvalidDimensionValue),
        ({"hostname": 1}, InvalidDimensionValue),
        ({"hostname": None}, InvalidDimensionValue),
        *(({"a": f"a{character}"}, InvalidDimensionValue) for character in '<>={},"\\;&'),
    ],
    metrics.validate_value_meta: [
        (None, None),
        ({}, None),
        ({"msg": "a <b> = {c}"}, None),
        ({"_msg": None, "n": [1, {"deep": True}]}, None),
        ({str(number): "" for number in range(16)}, None),
        ({str(number): "" for number in range(17)}, InvalidValueMeta),
        ({"k" * 255: ""}, None),
        ({"k" * 256: ""}, InvalidValueMeta),
        ({"": "x"}, InvalidValueMeta),
        ({"m": "x" * 2039}, None),  # {"m": "…"} is 2048 characters
        ({"m": "x" * 2040}, InvalidValueMeta),
        ({"m": "é" * 339}, None),  # six characters each, as ASCII
        ({"m": "é" * 340}, InvalidValueMeta),
        ({"m": math.nan}, InvalidValueMeta),
        ({"m": object()}, InvalidValueMeta),
        ({"m": b"text"}, None),
        ({"m": b"\xff"}, InvalidValueMeta),
        ({"m": Decimal("1.5")}, None),
        ({"m": Decimal("NaN")}, InvalidValueMeta),
    ],
    metrics.validate: [
        (CPU, None),
        ([], None),
        ([CPU, CPU], None),
        ({**CPU, "dimensions": {"a": "b"}, "value_meta": {"c": "d"}}, None),
        ({**CPU, "value_meta": None}, None),
        ([CPU, {**CPU, "name": "a b"}], InvalidMetricName),
        ({**CPU, "value": "x"}, InvalidValue),
        ({**CPU, "timestamp": "x"}, InvalidTimeStamp),
        ({**CPU, "dimensions": {"_a": "b"}}, InvalidDimensionKey),
        ({**CPU, "dimensions": {"a": ""}}, InvalidDimensionValue),
        ({**CPU, "value_meta": {"": "d"}}, InvalidValueMeta),
    ],
}

# monasca-common 3.8.0 also refused these values, but with errors of Python: KeyError, TypeError, AttributeError.
OF_ANOTHER_SHAPE = [
    (metrics.validate, {"value": 1, "timestamp": 1}, InvalidMetricName),
    (metrics.validate, {"name": "cpu", "timestamp": 1}, InvalidValue),
    (metrics.validate, {"name": "cpu", "value": 1}, InvalidTimeStamp),
    (metrics.validate, "cpu", InvalidMetric),
    (metrics.validate, [[CPU]], InvalidMetric),
    (metrics.validate, {**CPU, "dimensions": None}, InvalidDimensionKey),
    (metrics.validate_value_meta, [], InvalidValueMeta),
    (metrics.validate_value_meta, {1: "x"}, InvalidValueMeta),
]


class MetricsTest(base.BaseTestCase):
    def outcome(self, call, *arguments):
        try:
            call(*arguments)
        except InvalidMetric as error:
            return type(error)
        return None

    def test_metrics_are_accepted_and_refused_as_before(self):
        for call, rows in TABLES.items():
            for argument, expected in rows:
                self.assertEqual(expected, self.outcome(call, argument), f"{call.__name__}({argument!r:.80})")

    def test_a_dimension_value_can_be_checked_separately(self):
        self.assertIsNone(self.outcome(metrics.validate_dimension_value, "hostname", "web1"))
        error = self.assertRaises(InvalidDimensionValue, metrics.validate_dimension_value, "hostname", "a=b")
        self.assertIn("hostname", str(error))

    def test_values_of_other_types_are_refused_with_their_names(self):
        for call, argument, expected in OF_ANOTHER_SHAPE:
            self.assertEqual(expected, self.outcome(call, argument), f"{call.__name__}({argument!r:.80})")

    def test_an_error_names_the_metric_the_input_and_the_rule(self):
        error = self.assertRaises(InvalidDimensionValue, metrics.validate, [{**CPU, "dimensions": {"os": "a;b"}}])
        self.assertIn("cpu.idle_perc", str(error))
        self.assertIn("'os'", str(error))
        self.assertIn("a;b", str(error))

    def test_an_error_truncates_a_long_text(self):
        error = self.assertRaises(InvalidMetricName, metrics.validate_name, "n" * 100_000)
        self.assertLess(len(str(error)), 500)

    def test_importing_the_module_imports_no_part_of_kafka(self):
        code = (
            "import sys, monasca_common.validation.metrics, monasca_common.simport.simport\n"
            "sys.exit(bool({'confluent_kafka', 'monasca_common.kafka', 'oslo_config'} & sys.modules.keys()))"
        )
        self.assertEqual(0, subprocess.run([sys.executable, "-c", code]).returncode)
