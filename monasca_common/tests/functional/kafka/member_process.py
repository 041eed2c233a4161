# SPDX-License-Identifier: Apache-2.0
"""A member of a group in its own process, so that a test can kill it.

python -m monasca_common.tests.functional.kafka.member_process '{"bootstrap_servers": …, "topics": […], "group_id": …}'
"""

from __future__ import annotations

import json
import subprocess  # nosec B404
import sys
from typing import Any

from monasca_common.kafka import plugins
from monasca_common.kafka.settings import ConnectionSettings, ConsumerSettings

_OWNS = "owns partitions"


class MemberProcess:
    """Starts a member process and waits until it owns partitions. ``settings``: fields of `ConsumerSettings`, as
    JSON."""

    def __init__(self, bootstrap_servers: str, **settings: Any) -> None:
        described = json.dumps({"bootstrap_servers": bootstrap_servers, **settings})
        self._process = subprocess.Popen(  # nosec B603
            [sys.executable, "-m", __spec__.name, described], stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None  # nosec B101
        reported = self._process.stdout.readline()
        if reported.strip() != _OWNS:
            self.kill()
            raise AssertionError(f"the member ended before it owned a partition: it printed {reported!r}")

    def kill(self) -> None:
        """Send SIGKILL; a second call has no effect."""
        self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


def main() -> None:
    given = json.loads(sys.argv[1])
    connection = ConnectionSettings(bootstrap_servers=given.pop("bootstrap_servers"))
    topics = tuple(given.pop("topics"))
    reported = False
    with plugins.kafka_consumer(ConsumerSettings(connection=connection, topics=topics, **given)) as consumer:
        while True:
            consumer.poll(timeout=0.1)
            if consumer.assignment() and not reported:
                reported = True
                sys.stdout.write(f"{_OWNS}\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main()
