# SPDX-License-Identifier: Apache-2.0
"""Fetch the Kafka of the cell ``oldest`` before the tests begin, which have less time. The cells are in tox.ini."""

import os

from monasca_common.devbroker.jars import VERSION_VARIABLE, kafka_jars
from monasca_common.tests.functional.test_matrix import OLDEST_KAFKA

if __name__ == "__main__":
    kafka_jars({**os.environ, VERSION_VARIABLE: OLDEST_KAFKA})
