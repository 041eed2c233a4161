# SPDX-License-Identifier: Apache-2.0
"""Tests on a real Kafka."""

import faulthandler
import os
from pathlib import Path

# oslotest gives every test an empty HOME, and with it an empty cache: Kafka would be fetched again by each test.
os.environ.setdefault("XDG_CACHE_HOME", str(Path.home() / ".cache"))

# A process that hangs within the client's C code hears no alarm, so that a test's own time limit does not reach it:
# it shows where it is and ends.
if "OS_TEST_TIMEOUT" in os.environ:
    faulthandler.dump_traceback_later(3000, exit=True)
