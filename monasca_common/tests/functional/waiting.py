# SPDX-License-Identifier: Apache-2.0
"""Wait for a state that other processes or threads reach, with one time limit for all tests."""

import time

PATIENCE_SECONDS = 120.0  # long, because a busy machine is slow; the wait ends as soon as the state is reached
_TURN_SECONDS = 0.02


class Waiting:
    """A mixin for a test case."""

    def wait_until(self, condition, what="it", *, seconds=PATIENCE_SECONDS):
        """Wait until ``condition()`` is true. ``what``: the text of the failure, or a function that returns it."""
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                self.fail(f"not reached within {seconds:g} s: {what() if callable(what) else what}")
            time.sleep(_TURN_SECONDS)
