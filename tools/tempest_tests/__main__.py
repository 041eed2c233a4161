# SPDX-License-Identifier: Apache-2.0
"""``python tools/tempest_tests``: see `run_tempest`."""

import signal
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # verdict

import run_tempest

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, run_tempest.interrupted)
    sys.exit(run_tempest.main())
