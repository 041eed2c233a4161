# SPDX-License-Identifier: Apache-2.0
"""InfluxDB 1.x: written at least once, with the line protocol, and never read."""

from monasca_common.storage.influxdb.storage import InfluxdbStorage

__all__ = ["InfluxdbStorage"]
