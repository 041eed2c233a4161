# SPDX-License-Identifier: Apache-2.0
"""Wait for a state that other processes or threads reach, with one time limit for all tests."""

import os
import time

# Long, because a busy machine is slow, but shorter than the time limit of a test. The wait ends as soon as the state is
# reached.
PATIENCE_SECONDS = min(120.0, 0.8 * float(os.environ.get("OS_TEST_TIMEOUT") or 150))


class Waiting:
    """A mixin for a test case."""

    turn_seconds = 0.02

    def wait_until(self, condition, what="it", *, seconds=PATIENCE_SECONDS):
        """Wait until ``condition()`` is true. ``what``: the text of the failure, or a function that returns it."""
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                self.fail(f"not reached within {seconds:g} s: {what() if callable(what) else what}")
            time.sleep(self.turn_seconds)


def wait_until_ready(is_ready, poll, log, *, seconds=PATIENCE_SECONDS):
    """Wait until a server is ready, and raise with the end of its log if it ends or is not ready in time.

    ``is_ready()``: false, or raises `OSError`, until then. ``poll()``: the exit status; ``None`` while the server runs.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            if is_ready():
                return
        except OSError:
            pass
        if poll() is not None or time.monotonic() > deadline:
            raise AssertionError(f"the server does not start:\n{log.read_text(errors='replace')[-4000:]}")
        time.sleep(Waiting.turn_seconds)
