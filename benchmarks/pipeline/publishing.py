# SPDX-License-Identifier: Apache-2.0
"""The aggregates of one period, from PostgreSQL to Kafka: `Outbox.publish` of as many groups as the job says."""

from __future__ import annotations

import sqlalchemy as sa

from benchmarks.job import Figures, Job, Stopwatch, main
from benchmarks.librdkafka import versions
from benchmarks.pipeline.aggregating import specifications
from benchmarks.process_tree import PeakMemory
from monasca_common.kafka.plugins import kafka_producer
from monasca_common.kafka.settings import ConnectionSettings, ProducerSettings
from monasca_common.pipeline import Publisher
from monasca_common.pipeline.aggregate import periods
from monasca_common.pipeline.aggregate.periods import Closing, Outbox, Period
from monasca_common.pipeline.source.offset_store import OffsetStore

_START_MS = 1_767_268_800_000
_STORE = """
INSERT INTO aggregate_usage (job, specification, window_start, group_id, group_values, record_count, sums, least,
    greatest, oldest_timestamp, oldest_partition, oldest_offset, oldest_value, latest_timestamp, latest_partition,
    latest_offset, latest_value)
SELECT 'benchmark', :specification, :start, decode(md5(number::text), 'hex'),
       '["compute-' || number || '.example.org","9f2d4c0a7b6e4d31a5c8e0f1b2a3c4d5"]', 20, '1234.5 0.25', 1, 99,
       :start + 1000, 0, number, 5, :start + 2000, 0, number, 7
FROM generate_series(1, :groups) AS number
"""


def run(job: Job) -> Figures:
    wanted = specifications(1)
    (transform,) = wanted.transforms.values()
    offset_store, closing = OffsetStore(job.database), Closing(wanted, 0)
    with offset_store.writing() as connection:
        connection.execute(sa.text(_STORE), {"specification": transform.id, "start": _START_MS, "groups": job.messages})
        periods.touch(connection, "benchmark", [Period(transform.id, _START_MS)], closing, _START_MS)
    connection_settings = ConnectionSettings(job.servers)
    with kafka_producer(ProducerSettings(connection_settings)) as producer:
        outbox = Outbox(offset_store, producer, job.topic, Publisher("benchmark", "t", "r"), closing, "update")
        with PeakMemory() as memory, Stopwatch() as watch:
            published = outbox.publish(_START_MS)
    assert (published.messages, published.undelivered) == (job.messages, 0)
    return Figures(
        job.messages,
        watch.seconds,
        memory.cpu_seconds,
        written=job.messages,
        resident_mb=memory.peak_mb,
        versions=versions(),
    )


if __name__ == "__main__":
    main(run)
