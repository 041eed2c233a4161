# SPDX-License-Identifier: Apache-2.0
"""Exits with an error text if the native client cannot be used, for builds of images and wheels."""

import sys

from monasca_common.kafka.transport.native import reason

unavailable = reason()
sys.exit(None if unavailable is None else f"the native Kafka client cannot be used: {unavailable}")
