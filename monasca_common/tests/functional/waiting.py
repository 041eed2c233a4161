# SPDX-License-Identifier: Apache-2.0
"""How the functional tests wait for what other processes and threads do: for the state itself, with one bound."""

import time

PATIENCE_SECONDS = 120.0  # a bound, not a measure: it costs nothing when all is well, and a busy machine is slow
_TURN_SECONDS = 0.02


class Waiting:
    """Mixed into a test case."""

    def wait_until(self, condition, what="it", *, seconds=PATIENCE_SECONDS):
        """``what`` is named if it does not come about; a callable is asked for it then."""
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                self.fail(f"within {seconds:g} s did not come about: {what() if callable(what) else what}")
            time.sleep(_TURN_SECONDS)
