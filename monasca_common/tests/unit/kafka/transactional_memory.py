# SPDX-License-Identifier: Apache-2.0
"""Memory clients whose transactions do not hide messages: for tests of hanging calls, not of visibility."""

import threading

from monasca_common.kafka.transport.memory import MemoryConsumer, MemoryProducer

_REAL_SECONDS = 50


class TransactionalMemoryProducer(MemoryProducer):
    """Records its calls. A call in ``hanging`` does not return before ``returned`` is set."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.asked: list[str] = []
        self.hanging: set[str] = set()
        self.hung = False
        self.returned = threading.Event()

    def produce_record(self, *arguments, **options):
        self.asked.append("produce")
        super().produce_record(*arguments, **options)

    def init_transactions(self, timeout):
        self._ask("init")

    def begin_transaction(self):
        self._ask("begin")

    def send_offsets(self, offsets, group_metadata, timeout):
        self._ask("offsets")

    def commit_transaction(self, timeout):
        self._ask("commit")

    def abort_transaction(self, timeout):
        self._ask("abort")

    def close(self, timeout):
        self._ask("close")
        super().close(timeout)

    def _ask(self, what):
        self.asked.append(what)
        if what in self.hanging:
            self.hung = True
            self.returned.wait(_REAL_SECONDS)
            self.hung = False


class TransactionalMemoryConsumer(MemoryConsumer):
    def group_metadata(self):
        return "generation"
