# SPDX-License-Identifier: Apache-2.0
"""Our ``publish``: bulks whose outcome is known, from one thread or from several that share a producer."""

from __future__ import annotations

import threading

from benchmarks import ours
from benchmarks.job import Figures, Job, Stopwatch, main
from benchmarks.librdkafka import versions
from benchmarks.payload import VALUES

BULK = 100
EAGER = {"linger_ms": 1, "eager_callers": 1}  # what a server may set whose callers come all the time


def run(job: Job) -> Figures:
    bulk = VALUES[:BULK]
    bulks = job.messages // BULK // job.threads
    outcomes: list[int] = []
    changes = EAGER if job.case == "publish-8-eager" else {}
    with ours.audited(job, "producer") as reporter, ours.producer(job, **changes) as producer:
        if reporter is not None:
            reporter.watch(producer)
        producer.publish(job.topic, bulk).raise_for_undelivered()

        def work() -> None:
            outcomes.append(sum(producer.publish(job.topic, bulk).delivered_count for _ in range(bulks)))

        threads = [threading.Thread(target=work) for _ in range(job.threads)]
        with Stopwatch() as watch:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    messages = bulks * BULK * job.threads
    if sum(outcomes) != messages:
        raise RuntimeError(f"{sum(outcomes)} of {messages} were acknowledged")
    return Figures(messages, watch.seconds, watch.cpu_seconds, written=messages + BULK, versions=versions())


if __name__ == "__main__":
    main(run)
