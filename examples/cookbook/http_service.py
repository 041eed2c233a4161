# SPDX-License-Identifier: Apache-2.0
"""Call an HTTP service: wait while it is unavailable, and dead-letter messages that it rejects."""

import http.client
import http.server
import threading
import urllib.error
import urllib.request

from monasca_common import kafka
from monasca_common.kafka.testing import MemoryKafka

NOT_ABOUT_THE_MESSAGE = (401, 403, 408, 429)
statuses = iter((503, 200, 422))  # the service is unavailable, accepts an order, and rejects an order


def post(url: str, message: kafka.Message) -> None:
    headers = {"Idempotency-Key": message.message_id.decode()}
    request = urllib.request.Request(url, data=message.value, headers=headers)
    try:
        urllib.request.urlopen(request, timeout=10).close()
    except urllib.error.HTTPError as error:
        if error.code >= 500 or error.code in NOT_ABOUT_THE_MESSAGE:
            raise kafka.RetryLater() from error
        raise kafka.Poison(f"the service responded with status {error.code}") from error
    except (OSError, http.client.HTTPException) as error:  # such as URLError and TimeoutError
        raise kafka.RetryLater() from error


class Service(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        status = next(statuses)
        print(f"status {status}")
        self.send_response(status)
        self.end_headers()


with MemoryKafka() as memory, http.server.HTTPServer(("127.0.0.1", 0), Service) as server:
    threading.Thread(target=server.serve_forever, daemon=True).start()
    for topic in ("orders", "orders.dlq"):
        memory.broker.create_topic(topic)
    producer, consumer = memory.producer(), memory.consumer("orders", "shop")
    producer.publish("orders", [b"a lamp", b"no lamp"]).raise_for_undelivered()

    def handle(message: kafka.Message) -> None:
        post(f"http://127.0.0.1:{server.server_port}/orders", message)

    drained = memory.drain(
        kafka.Processor(consumer, handle, per_message=True, producer=producer, dead_letters=kafka.DeadLetters())
    )
    print(f"dead letters: {len(drained.dead_letters)}")
    server.shutdown()
