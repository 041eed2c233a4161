# SPDX-License-Identifier: Apache-2.0
"""What notifications are compared with: the old service's way of sending, without anything else of it.

Each of four processes reads its share of the topic, finds the methods of one alarm at a time, posts to them one after
the other with `requests`, and commits. It has no ledger, no retry and no check of addresses.
``python -m benchmarks.notifications.sequential_notifier SERVERS TOPIC GROUP DATABASE`` runs until it is killed.
"""

from __future__ import annotations

import json
import multiprocessing
import signal
import sys

import requests
import sqlalchemy as sa
from confluent_kafka import Consumer

_PROCESSES = 4
_TIMEOUT_SECONDS = 5
_METHODS = sa.text(
    "SELECT address FROM notification_method JOIN alarm_action ON method_id = id "
    "WHERE definition_id = :d AND state = :s"
)


def _work(servers: str, topic: str, group: str, database: str) -> None:
    engine = sa.create_engine(database)
    consumer = Consumer({"bootstrap.servers": servers, "group.id": group, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    while True:
        message = consumer.poll(1.0)
        if message is None or message.error():
            continue
        told = json.loads(message.value())["alarm-transitioned"]
        with engine.connect() as connection:
            found = connection.execute(_METHODS, {"d": told["alarmDefinitionId"], "s": told["newState"]})
            addresses = [row.address for row in found]
        body = {
            "alarm_id": told["alarmId"],
            "alarm_definition_id": told["alarmDefinitionId"],
            "alarm_name": told["alarmName"],
            "alarm_description": told["alarmDescription"],
            "alarm_timestamp": told["timestamp"] / 1000,
            "state": told["newState"],
            "old_state": told["oldState"],
            "message": told["stateChangeReason"],
            "tenant_id": told["tenantId"],
            "metrics": told["metrics"],
        }
        for address in addresses:
            headers = {"content-type": "application/json"}
            requests.post(address, data=json.dumps(body), headers=headers, timeout=_TIMEOUT_SECONDS)
        consumer.commit(message, asynchronous=True)


if __name__ == "__main__":
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_work, args=sys.argv[1:], daemon=True) for _ in range(_PROCESSES)]
    for process in processes:
        process.start()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit())  # an exit ends daemon processes, a signal does not
    for process in processes:
        process.join()
