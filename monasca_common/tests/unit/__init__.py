# SPDX-License-Identifier: Apache-2.0
"""Tests that need no broker and no database server. What Hypothesis generates has no limit of time: the machine may be
busy."""

from hypothesis import HealthCheck, settings

settings.register_profile("busy", parent=settings.default, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")
