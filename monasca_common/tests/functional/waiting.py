# SPDX-License-Identifier: Apache-2.0
"""Waits until a state is reached that other processes and threads cause, with one time limit for all tests."""

import time

PATIENCE_SECONDS = 120.0  # long, because a busy machine is slow; a state that is reached ends the wait
_TURN_SECONDS = 0.02


class Waiting:
    """Mixed into a test case."""

    def wait_until(self, condition, what="it", *, seconds=PATIENCE_SECONDS):
        """Wait until ``condition()`` is true. ``what``: the text of the failure, or a function that returns it."""
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                self.fail(f"within {seconds:g} s did not come about: {what() if callable(what) else what}")
            time.sleep(_TURN_SECONDS)
