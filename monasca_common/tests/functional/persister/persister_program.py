# SPDX-License-Identifier: Apache-2.0
"""The persister's or sink's command for crash tests: ``python -m … '<json>' persister --config-file F``.

``fail_points`` are armed in the first worker processes and not in their replacements. ``crashes`` (a seed and a number)
arms each process at a random fail point until this number of processes has died. ``mutants`` each remove a guarantee;
most are combined with ``no_fence``, because the fence also provides that guarantee.
"""

import contextlib
import json
import os
import random
import signal
import sys
import threading
import time
from unittest import mock

import cotyledon

from monasca_common.cli import main as cli
from monasca_common.kafka import RebalanceListener, failpoints, open_consumer
from monasca_common.kafka.message import TopicPartition
from monasca_common.runtime import member, member_health, status_board, workers
from monasca_common.storage import batch_handler, fence, row_keys
from monasca_common.storage.errors import StorageUnavailable
from monasca_common.storage.prometheus.receiver import Receiver
from monasca_common.storage.prometheus.storage import PrometheusWriter
from monasca_common.storage.start_offsets import StartOffsets

CRASH_POINTS = (
    "processor.after_poll",
    "storage.in_transaction",
    "storage.after_commit",
    "processor.after_handle",
    "processor.before_commit",
    "processor.after_dead_letter",
    "processor.after_accounting",
    "processor.during_revoke",
)
_RARE_POINTS = CRASH_POINTS[-3:]
BEFORE_SAMPLES = "mutant.before_samples"
_BEFORE_WRITE = "storage.before_write"
_BREATH_SECONDS = 0.05


def patch(owner, name, value):
    """Patch permanently: this process is the mutant."""
    mock.patch.object(owner, name, value).start()


def no_fence():
    """Write rows regardless of the stored offset."""
    patch(fence, "first_new", lambda claim, stored: claim.start)


def trusts_kafkas_offsets():
    def assigned(starts, partitions):
        starts.topic_ids = starts._consumer.topic_ids()
        return RebalanceListener.assigned(starts, partitions)

    patch(StartOffsets, "assigned", assigned)


def commits_to_kafka_first():
    """Commit offsets to Kafka before the transaction of the database."""
    claimed = batch_handler.BatchHandler._claim

    def committed(any_handler, partition, start, end):
        result = any_handler._starts._consumer.commit({partition: end}, 5.0)
        assert all(each.committed for each in result.values())
        return claimed(any_handler, partition, start, end)

    patch(batch_handler.BatchHandler, "_claim", committed)


def drops_a_batch_on_an_error():
    write = batch_handler.BatchHandler._write

    def written(any_handler, *arguments):
        try:
            write(any_handler, *arguments)
        except failpoints.FailPointReached:
            return

    patch(batch_handler.BatchHandler, "_write", written)


def forgets_dead_letters():
    """Do not advance the stored offset past dead letters."""
    patch(batch_handler.BatchHandler, "accounted", lambda any_handler, partition, start, end: None)


def keys_rows_by_their_times():
    patch(row_keys, "by_id", lambda headers, untimed: ())


def stores_offsets_before_samples():
    first_new = PrometheusWriter._first_new

    def stored_first(writer, claim):
        start = first_new(writer, claim)
        writer._positions.accounted(claim)
        failpoints.fail_point(BEFORE_SAMPLES)
        return start

    patch(PrometheusWriter, "_first_new", stored_first)


def looks_up_no_refused_samples():
    patch(Receiver, "has", lambda *_: None)


def checks_no_window():
    patch(Receiver, "check_window", lambda _: None)


def takes_an_error_for_an_acknowledgement():
    write = Receiver.write

    def written(receiver, *arguments):
        with contextlib.suppress(StorageUnavailable):
            write(receiver, *arguments)

    patch(Receiver, "write", written)


def dies_at_once():
    patch(workers.Worker, "run", lambda worker: os._exit(1))


def owns_everything(*topics):
    """Read all partitions regardless of the group."""
    everything = [TopicPartition(topic, number) for topic, count in topics for number in range(count)]
    patch(member, "open_consumer", lambda settings: open_consumer(settings, partitions=everything))


def arms_the_first_workers_only(text):
    made = workers.Worker.__init__

    def making(worker, worker_id, plan, *arguments):
        if not any(status.restarts for status in plan.board.members()):
            failpoints.arm_from(text)
        made(worker, worker_id, plan, *arguments)

    patch(workers.Worker, "__init__", making)


def arms_every_worker(seed, count):
    """Kill each of the first ``count`` workers at a random fail point and pass; they are replaced immediately."""
    patch(cotyledon.ServiceManager, "_slowdown_respawn_if_needed", lambda manager: time.sleep(_BREATH_SECONDS))
    made = workers.Worker.__init__

    def making(worker, worker_id, plan, *arguments):
        died = sum(status.restarts for status in plan.board.members())
        if died < count:
            lot = random.Random(f"{seed}/{died}")
            point = lot.choice((_BEFORE_WRITE, *CRASH_POINTS))
            rare = point in _RARE_POINTS
            # End the worker if it does not pass the fail point, as without a rebalance.
            failpoints.arm(_BEFORE_WRITE, f"kill@{100 if rare else 30}")
            failpoints.arm(point, f"kill@{1 if rare else lot.randint(1, 12)}")
        made(worker, worker_id, plan, *arguments)

    patch(workers.Worker, "__init__", making)


def end_with_the_test():
    """Remove everything, however the test ends."""
    while os.read(0, 1):
        pass
    os.killpg(0, signal.SIGKILL)


def main(arguments):
    facts = json.loads(arguments[0])
    for name in facts.get("mutants", ()):
        globals()[name]()
    if "owns" in facts:
        owns_everything(*facts["owns"])
    # Report more often, because tests poll the status, and wait longer for the lag, because a broker can be busy.
    patch(status_board, "_REPORT_SECONDS", 0.2)
    patch(member_health, "LAG_SECONDS", 5.0)
    if "crashes" in facts:
        arms_every_worker(*facts["crashes"])
    else:
        arms_the_first_workers_only(facts.get("fail_points", ""))
    threading.Thread(target=end_with_the_test, daemon=True).start()
    return cli.main(arguments[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
