# SPDX-License-Identifier: Apache-2.0
"""Publish a reading with the serializer that the first argument names."""

import sys

from oslo_config import cfg

from monasca_common import kafka

TOPIC = "readings"

conf = cfg.ConfigOpts()
conf(["--config-file", "tutorial.conf"])
serializer = kafka.load_serializer(sys.argv[1], conf=conf)
record = serializer.record(TOPIC, {"room": "hall", "celsius": 21.5})
with kafka.load_producer(conf) as producer:
    producer.publish(TOPIC, [record]).raise_for_undelivered()
print(f"{sys.argv[1]}: {len(record.value or b'')} bytes")
