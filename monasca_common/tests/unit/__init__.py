# SPDX-License-Identifier: Apache-2.0
"""Tests that need no broker and no database server."""

import os

from hypothesis import HealthCheck, settings

#: How many random cases a test tries. The full run (``--all``) tries 100.
CASES = int(os.environ.get("MONASCA_COMMON_TEST_CASES", "30"))

# Without a time limit for each case, because the machine may be busy.
settings.register_profile(
    "cases", parent=settings.default, max_examples=CASES, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("cases")
