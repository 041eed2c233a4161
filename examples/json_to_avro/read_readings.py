# SPDX-License-Identifier: Apache-2.0
"""Read as many readings as the first argument states, in JSON and in Avro, and commit them."""

import sys
from typing import Any

from oslo_config import cfg

from monasca_common import kafka

conf = cfg.ConfigOpts()
conf(["--config-file", "tutorial.conf"])
left = int(sys.argv[1])


def handle(message: kafka.Message[Any]) -> None:
    global left
    print(f"{message.value['room']}: {message.value['celsius']} degrees")
    left -= 1
    if not left:
        processor.stop()


processor = kafka.Processor(
    kafka.load_consumer(conf, "kafka_readings"),
    handle,
    per_message=True,
    serializer=kafka.load_serializer("avro", conf=conf),
)
with processor.consumer:
    processor.run()
