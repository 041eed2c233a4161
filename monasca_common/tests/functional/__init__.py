# SPDX-License-Identifier: Apache-2.0
"""Tests on a real Kafka."""

import faulthandler
import os
from pathlib import Path

# oslotest gives every test an empty HOME, and therefore an empty cache. Without this variable, each test would download
# Kafka again.
os.environ.setdefault("XDG_CACHE_HOME", str(Path.home() / ".cache"))

# The time limit of a test cannot interrupt a process that hangs in the client's C code, because Python handles the
# signal only afterwards. Such a process prints its traceback and exits.
if "MONASCA_COMMON_PROCESS_SECONDS" in os.environ:
    faulthandler.dump_traceback_later(float(os.environ["MONASCA_COMMON_PROCESS_SECONDS"]), exit=True)
