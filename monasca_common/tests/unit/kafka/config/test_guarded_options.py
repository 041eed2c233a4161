# SPDX-License-Identifier: Apache-2.0
"""No raw option of librdkafka can undo a guarantee."""

from __future__ import annotations

import re

from oslotest import base

from monasca_common.kafka.config import guarded_options
from monasca_common.kafka.errors import ConfigurationError

UNDOING_PRODUCERS = (
    "acks=1",
    "acks=0",
    "request.required.acks=1",
    "enable.idempotence=false",
    "message.timeout.ms=5000",
    "delivery.timeout.ms=5000",
    "retries=0",
    "message.send.max.retries=0",
    "partitioner=random",
    "transactional.id=x",
    "queuing.strategy=lifo",
    "delivery.report.only.error=true",
    "dr_msg_cb=x",
    "on_delivery=x",
    "error_cb=x",
    "batch.size=10000000",
    "message.max.bytes=10000000",
    "queue.buffering.max.messages=1",
)
UNDOING_CONSUMERS = (
    "enable.auto.commit=true",
    "auto.commit.enable=true",
    "enable.auto.offset.store=true",
    "auto.offset.reset=latest",
    "enable.partition.eof=true",
    "partition.assignment.strategy=range",
    "session.timeout.ms=1",
    "heartbeat.interval.ms=1",
    "max.poll.interval.ms=1",
    "isolation.level=read_uncommitted",
    "group.id=other",
    "group.protocol=consumer",
    "group.instance.id=x",
    "on_commit=x",
    "rebalance_cb=x",
    "queued.max.messages.kbytes=1",
)
UNDOING_BOTH = (
    "bootstrap.servers=other",
    "metadata.broker.list=other",
    "security.protocol=plaintext",
    "sasl.mechanism=PLAIN",
    "sasl.mechanisms=PLAIN",
    "sasl.username=x",
    "sasl.password=x",
    "ssl.key.pem=x",
    "ssl.key.password=x",
    "enable.ssl.certificate.verification=false",
    "ssl.endpoint.identification.algorithm=none",
    "plugin.library.paths=evil.so",
    "default.topic.config=acks=0",
    "test.mock.num.brokers=1",
    "stats_cb=x",
    "logger=x",
)


class GuardedOptionsTest(base.BaseTestCase):
    def parse(self, *lines: str, option: str = "producer_options") -> dict[str, str]:
        return dict(guarded_options.parse(lines, option=option, group="kafka"))

    def assert_refused(self, line: str, option: str) -> None:
        name, _, value = line.partition("=")
        error = self.assertRaises(ConfigurationError, self.parse, line, option=option)
        self.assertIn(f"{option} in group [kafka]: {name} is refused: ", str(error))
        self.assertNotIn(f"={value}", str(error).replace("acks=all", ""))

    # Rule 1
    def test_options_that_undo_a_guarantee_of_producers_are_refused(self):
        for line in UNDOING_PRODUCERS + UNDOING_BOTH:
            self.assert_refused(line, "producer_options")

    def test_options_that_undo_a_guarantee_of_consumers_are_refused(self):
        for line in UNDOING_CONSUMERS + UNDOING_BOTH:
            self.assert_refused(line, "consumer_options")

    # Rule 1
    def test_options_with_librdkafkas_prefix_for_topics_are_also_checked(self):
        for line in UNDOING_PRODUCERS + UNDOING_BOTH:
            self.assert_refused(f"topic.{line}", "producer_options")
        for line in UNDOING_CONSUMERS + UNDOING_BOTH:
            self.assert_refused(f"topic.{line}", "consumer_options")

    def test_each_refusal_states_the_remedy(self):
        for option, refused in guarded_options.REFUSED.items():
            for name in refused:
                reason = guarded_options.refusal(option, name)
                self.assertTrue(re.search(r"(use|remove|put|write|give|set|belong)", reason or ""), f"{option}: {name}")

    def test_other_options_are_unchanged(self):
        parsed = self.parse("statistics.interval.ms = 1000", "debug=broker,topic", "debug=msg", "x.y=a=b")

        self.assertEqual({"statistics.interval.ms": "1000", "debug": "msg", "x.y": "a=b"}, parsed)

    def test_a_line_without_a_value_is_refused_by_its_number(self):
        for line in ("debug", "debug=", "=x"):
            error = self.assertRaises(ConfigurationError, self.parse, "a=b", line)
            self.assertIn("line 2", str(error))
