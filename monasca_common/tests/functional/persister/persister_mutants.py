# SPDX-License-Identifier: Apache-2.0
"""Changes that each remove a guarantee of the persister or the sink, for `changed_command`.

Most are combined with `no_fence`, because the fence also provides that guarantee.
"""

import contextlib
import os

from monasca_common.kafka import RebalanceListener, failpoints, open_consumer
from monasca_common.kafka.message import TopicPartition
from monasca_common.runtime import member, workers
from monasca_common.storage import batch_handler, fence, row_keys
from monasca_common.storage.errors import StorageUnavailable
from monasca_common.storage.prometheus.receiver import Receiver
from monasca_common.storage.prometheus.storage import PrometheusWriter
from monasca_common.storage.start_offsets import StartOffsets
from monasca_common.tests.functional.changed_command import patch

BEFORE_SAMPLES = "mutant.before_samples"


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


def _ignore(error, owner, name):
    function = getattr(owner, name)

    def call(*arguments):
        with contextlib.suppress(error):
            function(*arguments)

    patch(owner, name, call)


def drops_a_batch_on_an_error():
    _ignore(failpoints.FailPointReached, batch_handler.BatchHandler, "_write")


def forgets_dead_letters():
    """Do not advance the stored offset past dead letters."""
    patch(batch_handler.BatchHandler, "accounted", lambda any_handler, partition, start, end: None)


def keys_rows_by_their_times():
    patch(row_keys, "by_id", lambda *_: ())


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
    _ignore(StorageUnavailable, Receiver, "write")


def dies_at_once():
    patch(workers.Worker, "run", lambda worker: os._exit(1))


def owns_everything(*topics):
    """Read all partitions regardless of the group."""
    everything = [TopicPartition(topic, number) for topic, count in topics for number in range(count)]
    patch(member, "open_consumer", lambda settings: open_consumer(settings, partitions=everything))
