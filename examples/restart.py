# SPDX-License-Identifier: Apache-2.0
"""A service that restarts with new clients after a fatal client error, a few times at most.

It copies readings to another topic, exactly once for consumers of committed data. Exit status: 0 if it was stopped, or
received no reading for ``--idle_seconds``; 1 if its supervisor must start it again.
"""

import signal
import sys
import threading
import time
from collections.abc import Callable

from oslo_config import cfg

from monasca_common import kafka

MOST_RESTARTS = 3  # each restart may leave a client with a call that never returns
REST_SECONDS = 2.0

OPTIONS = [
    cfg.StrOpt("output", default="copies", help="The topic of the copies"),
    cfg.FloatOpt("idle_seconds", default=float("inf"), help="Seconds without a reading after which to stop"),
]


class Service:
    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._conf = conf
        self._busy_at = time.monotonic()
        self._stop: Callable[[], object] = lambda: None
        self.stopped = False

    def stop(self, *_signal: object) -> None:
        self.stopped = True
        self._stop()

    def run(self) -> None:
        """Run until stopped. The same transactional_id first ends an open transaction of the previous run; then the
        service resumes from the committed offsets."""
        producer = kafka.load_producer(self._conf)
        consumer = kafka.load_consumer(self._conf, "kafka_readings")
        with producer, consumer:  # closing takes at most its time-out plus one second
            processor = kafka.Processor(consumer, self.copy, producer=producer, transactional=True)
            self._stop = processor.stop
            threading.Thread(target=self._stop_when_idle, daemon=True).start()
            if not self.stopped:
                processor.run()

    def copy(self, readings: kafka.PartitionBatch) -> list[tuple[str, kafka.Record]]:
        self._busy_at = time.monotonic()
        return [(self._conf.output, kafka.Record(value)) for value in readings.values]

    def _stop_when_idle(self) -> None:
        while time.monotonic() - self._busy_at < self._conf.idle_seconds:
            time.sleep(0.2)
        self.stop()


def run(conf: cfg.ConfigOpts) -> int:
    service = Service(conf)
    signal.signal(signal.SIGTERM, service.stop)
    for restarts in range(MOST_RESTARTS + 1):
        try:
            service.run()
            return 0
        except kafka.FatalError as error:  # a FencedError ends the service
            print(f"fatal error of a client after {restarts} restarts: {error}", file=sys.stderr)
            time.sleep(REST_SECONDS * 2**restarts)
        if service.stopped:
            return 0
    return 1  # the supervisor starts a new process


def main() -> int:
    conf = cfg.ConfigOpts()
    conf.register_cli_opts(OPTIONS)
    try:
        conf(project="restart", default_config_files=[])
        return run(conf)
    except (kafka.MessagingError, cfg.Error) as error:
        print(f"restart: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
