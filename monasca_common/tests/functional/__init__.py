# SPDX-License-Identifier: Apache-2.0
"""Tests on a real Kafka."""

import os
from pathlib import Path

# oslotest gives every test an empty HOME, and with it an empty cache: Kafka would be fetched again by each test.
os.environ.setdefault("XDG_CACHE_HOME", str(Path.home() / ".cache"))
