# SPDX-License-Identifier: Apache-2.0
"""What an audit costs those that are audited: the ratio of their throughput to that of the same without an audit.

Runs take turns, now one and now the other first; each is a process of its own. At most 3 % may be lost, in the median
of all pairs; the quartiles tell whether the machine was quiet enough to say so.
"""

from __future__ import annotations

import argparse
import statistics
import sys

from benchmarks import ours
from benchmarks.job import Figures, Job, run_case
from benchmarks.topics import Topics
from monasca_common.devbroker import KafkaCluster
from monasca_common.monitoring.audit.settings import AuditSettings

_CASES = ("send_ours", "publish_ours", "consume_processor")
_ROOM = "messaging"
_FILL = "fill"
_KEPT = 0.97  # of the throughput


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.messaging.auditing", description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--only", choices=_CASES, action="append")
    parser.add_argument("--check", action="store_true", help="exit with 1 if an audit costs too much")
    arguments = parser.parse_args()
    if arguments.repeats < 2:
        parser.error("--repeats: at least 2, for quartiles")
    ratios = {}
    with KafkaCluster() as cluster:
        cluster.create_topic(AuditSettings().topic)
        topics = Topics(cluster)
        for module in arguments.only or _CASES:
            pairs = _pairs(module, cluster.bootstrap_servers, topics, arguments.messages, arguments.repeats)
            low, ratios[module], high = statistics.quantiles([audited.rate / plain.rate for plain, audited in pairs])
            cpu = statistics.median(audited.cpu_us / plain.cpu_us for plain, audited in pairs)
            rate = statistics.median(plain.rate for plain, _ in pairs)
            print(
                f"{module}: {rate:,.0f}/s without an audit, {ratios[module]:.3f} x with one "
                f"(quartiles {low:.3f} and {high:.3f}); CPU {cpu:.3f} x",
                flush=True,
            )
    return int(arguments.check and min(ratios.values()) < _KEPT)


def _pairs(module: str, servers: str, topics: Topics, messages: int, repeats: int) -> list[tuple[Figures, Figures]]:
    """Neighbours in time: without an audit, and with one."""
    pairs = []
    with topics.new() as backlog:
        reads = module.startswith("consume")
        if reads:
            run_case(f"{_ROOM}.{_FILL}", Job(servers, backlog, messages))
        for repeat in range(repeats):
            found: dict[str, Figures] = {}
            for case in ("", ours.AUDITED) if repeat % 2 == 0 else (ours.AUDITED, ""):
                with topics.new() as written:
                    topic = backlog if reads else written
                    found[case] = run_case(
                        f"{_ROOM}.{module}", Job(servers, topic, messages, f"{case}-{repeat}", case=case)
                    )
            pairs.append((found[""], found[ours.AUDITED]))
            print(
                f"  {module}: {found[''].rate:,.0f}/s, {found[ours.AUDITED].rate:,.0f}/s", file=sys.stderr, flush=True
            )
    return pairs


if __name__ == "__main__":
    sys.exit(main())
