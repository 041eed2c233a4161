# SPDX-License-Identifier: Apache-2.0
"""Receivers of Prometheus' remote write 1.0: metrics are written in order of time, and never read."""

from monasca_common.storage.prometheus.storage import PrometheusStorage

__all__ = ["PrometheusStorage"]
