# SPDX-License-Identifier: Apache-2.0
"""The API's responses compared with the log of a real Kafka, with faults in between."""

import contextlib
import json
import re
import selectors
import signal
import socket
import sys
import threading
import time
import urllib.error

import psutil
from prometheus_client.parser import text_string_to_metric_families

from monasca_common.devbroker.ports import free_ports
from monasca_common.tests.checker import each_once
from monasca_common.tests.functional.api.api_case import METRICS, ApiProcessCase, metric
from monasca_common.tests.functional.changed_command import command_after, set_constants
from monasca_common.tests.kafka_proxy import ApiKey, Fault
from monasca_common.tests.periodic import periodic
from monasca_common.tests.waiting import PATIENCE_SECONDS
from monasca_common.tests.web import fetch

# Small batches, each a request whose response can be lost; a lost response is detected after a second.
LOSSY = ["producer_options = socket.timeout.ms=1000", "producer_options = batch.num.messages=5"]


def api_stalled_after(seconds):
    """Return a command for which a topic is stalled after this time without an acknowledgement."""
    return [
        *command_after((set_constants, {"monasca_common.kafka.producer_pool.STALLED_AFTER_SECONDS": seconds})),
        "api",
    ]


class TestAcknowledged(ApiProcessCase):
    # Rule 27
    def test_accepted_metrics_are_in_the_log(self):
        api = self.api()
        names = [f"m{number}" for number in range(50)]
        self.assertEqual(204, api.post([metric(name) for name in names])[0])
        self.assertEqual(204, api.post(metric("one"))[0])
        logged = [json.loads(record.value)["metric"]["name"] for record in self.log(self.topic, self.partitions)]
        with each_once():
            self.assertEqual(sorted([*names, "one"]), sorted(logged))

    def test_invalid_metrics_are_dead_letters_before_the_response_if_they_are_dropped(self):
        api = self.api(api=["invalid_metrics = drop"])
        status, headers, _ = api.post([metric(), metric("a b")])
        self.assertEqual((204, "1"), (status, headers["monasca-rejected"]))
        self.assertEqual((1, 1), (len(self.log(self.topic, self.partitions)), len(self.log(self.rejects))))


class TestStop(ApiProcessCase):
    def test_a_stop_completes_requests_in_flight_and_exits_with_0(self):
        api = self.api(api=["publish_timeout_seconds = 120"])
        self.assertEqual(204, api.post(metric("warm"))[0])
        held = self.fixture.proxy.add(Fault.hold_answer(ApiKey.PRODUCE))
        answers = []
        client = threading.Thread(target=lambda: answers.append(api.post(metric("late"))[0]))
        client.start()
        self.wait_until(lambda: held.taken)
        api.process.send_signal(signal.SIGTERM)
        time.sleep(0.3)  # the stop is in progress
        self.assertEqual([], answers)
        self.fixture.proxy.remove(held)
        client.join(PATIENCE_SECONDS)
        self.assertEqual(([204], 0), (answers, api.process.wait(PATIENCE_SECONDS)))

    def test_a_killed_worker_is_replaced(self):
        api = self.api()
        (worker,) = api.workers()
        worker.kill()
        worker.wait(PATIENCE_SECONDS)
        api.wait_until_ready()
        self.assertEqual(204, api.post(metric())[0])
        self.assertEqual(0, api.stop())

    @periodic("test_api_kafka's first test also starts and stops an API")
    def test_start_and_stop_log_one_line_each(self):
        api = self.api(api=["workers = 2"])
        self.assertEqual(204, api.post(metric())[0])
        self.assertEqual(0, api.stop())
        lines = [line for line in api.text().splitlines() if " WARNING " not in line and not line.startswith("{")]
        self.assertEqual(2, len(lines), api.text())
        for part in (f"127.0.0.1:{api.port}", "workers 2", self.topic, self.cluster.bootstrap_servers):
            self.assertIn(part, lines[0])
        self.assertIn("stopped", lines[1])

    @periodic("the first test ends the API with SIGTERM")
    def test_ctrl_c_ends_the_api(self):
        api = self.api()
        self.assertEqual(0, api.stop(signal.SIGINT))


class TestStart(ApiProcessCase):
    def refused(self, text):
        api = self.start_api(text)
        self.assertEqual(1, api.process.wait(PATIENCE_SECONDS), api.text())
        return api.text()

    def test_a_misspelt_option_is_reported_before_the_start(self):
        self.assertIn("did you mean 'workers'", self.refused(self.configuration(api=["worker = 2"])))

    @periodic("the normal run contains test_a_misspelt_option_is_reported_before_the_start")
    def test_an_option_out_of_bounds_is_reported(self):
        self.assertIn("max_in_flight", self.refused(self.configuration(api=["max_in_flight = 0"])))

    @periodic("the normal run contains test_a_misspelt_option_is_reported_before_the_start")
    def test_a_port_in_use_is_reported(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            text = self.configuration().replace("{port}", str(taken.getsockname()[1]))
            self.assertIn("in use", self.refused(text))

    @periodic("the normal run contains test_a_misspelt_option_is_reported_before_the_start")
    def test_noauth_is_logged_at_the_start(self):
        self.assertIn("requests are not authenticated", self.api().text())


@periodic("runs the same application under other servers")
class TestOtherServers(ApiProcessCase):
    def test_an_application_imported_before_a_fork_serves_after_it(self):
        command = [sys.executable, "-m", "gunicorn", "--preload", "--workers", "2", "--no-control-socket"]
        command += ["--worker-class", "gthread", "--threads", "8", "--bind", "127.0.0.1:{port}"]
        api = self.api(
            command=[*command, "monasca_common.api.wsgi:application"], env={"MONASCA_API_CONFIG_FILES": "{conf}"}
        )
        answers = [api.post(metric(f"m{number}"))[0] for number in range(8)]
        self.assertEqual([204] * 8, answers)
        self.assertEqual(8, len(self.log(self.topic, self.partitions)))
        self.assertEqual(0, api.stop())


def samples(api):
    """Return the sums over all workers."""
    text = api.fetch("GET", "/metrics")[2].decode()
    return [sample for family in text_string_to_metric_families(text) for sample in family.samples]


@periodic("waits for the interval of the watch")
class TestWatching(ApiProcessCase):
    def posted(self, api):
        labels = {"kind": "metrics", "outcome": "delivered"}
        return sum(
            each.value for each in samples(api) if each.name.endswith("messages_total") and each.labels == labels
        )

    def test_metrics_cover_all_workers_and_each_request_has_a_line_and_an_id(self):
        api = self.api(api=["workers = 2"])
        self.wait_until(lambda: len(api.workers()) == 2)
        answers, workers = [], api.workers()
        for worker in workers:  # the other worker must respond
            worker.suspend()
            try:
                answers += [api.post(metric()) for _ in range(3)]
            finally:
                worker.resume()
        self.wait_until(lambda: self.posted(api) == 6 and api.text().count('"method":"POST"') == 6)
        workers[0].kill()
        workers[0].wait(PATIENCE_SECONDS)
        api.wait_until_ready()
        self.assertEqual(6, self.posted(api))
        self.assertEqual(0, api.stop())
        lines = [json.loads(line) for line in api.text().splitlines() if line.startswith("{")]
        posts = [line for line in lines if line["method"] == "POST"]
        self.assertEqual(
            [("noauth", "/v2.0/metrics", 204, 1)] * 6,
            [(line["tenant"], line["route"], line["status"], line["delivered"]) for line in posts],
        )
        ids = [headers["x-openstack-request-id"] for _, headers, _ in answers]
        self.assertEqual(sorted(ids), sorted(line["request_id"] for line in posts))

    def test_an_error_in_the_log_has_the_request_id_of_its_response(self):
        api = self.api(api=["publish_timeout_seconds = 0.1"])
        held = self.fixture.proxy.add(Fault.hold_answer(ApiKey.PRODUCE))
        status, headers, _ = api.post(metric())
        self.fixture.proxy.remove(held)
        self.assertEqual(503, status)
        (line,) = [line for line in api.text().splitlines() if "were not delivered" in line]
        self.assertIn(headers["x-openstack-request-id"], line)

    def test_the_status_port_serves_probes_and_metrics_of_all_workers(self):
        (port,) = free_ports(1)
        api = self.api(api=["workers = 2", f"status_port = {port}"])

        def ask(path):
            return fetch(f"http://127.0.0.1:{port}{path}")

        self.wait_until(lambda: ask("/readyz")[0] == 200, api.text)
        for worker in api.workers():  # the other worker responds
            worker.suspend()
            self.assertEqual(204, api.post(metric())[0])
            worker.resume()
        counted = 'monasca_api_messages_total{kind="metrics",outcome="delivered"} 2.0'
        self.wait_until(lambda: counted in ask("/metrics")[1], lambda: ask("/metrics")[1])
        for name in ("live", "ready"):
            self.assertIn(f'monasca_service_{name}{{service="api"}} 1.0', ask("/metrics")[1])
        status, body = ask("/healthz")
        ages = json.loads(body)["seconds_since_turn"]
        self.assertEqual((200, {f"worker_{each.pid}" for each in api.workers()}), (status, set(ages)))
        self.assertEqual((200, 404), (api.fetch("GET", "/healthcheck")[0], api.fetch("GET", "/metrics")[0]))
        first = api.workers()[0]
        first.kill()
        first.wait(PATIENCE_SECONDS)
        self.wait_until(lambda: len(api.workers()) == 2 and f"worker_{first.pid}" not in ask("/healthz")[1])
        self.assertIn(counted, ask("/metrics")[1])
        self.assertEqual(0, api.stop())
        self.assertRaises(urllib.error.URLError, ask, "/healthz")


class TestIdempotencyKey(ApiProcessCase):
    KEY = {"Idempotency-Key": "one-and-the-same"}  # noqa: RUF012

    # Rule 27
    @periodic("the test with lost responses repeats requests at any worker")
    def test_readers_handle_a_repeat_at_another_worker_once(self):
        first, second = self.api(), self.api()
        body = [metric("a"), metric("b")]
        self.assertEqual([204, 204], [api.post(body, self.KEY)[0] for api in (first, second)])
        self.assertEqual(
            (4, 2), (len(self.log(self.topic, self.partitions)), len(self.read(self.topic, self.partitions)))
        )

    # Rule 27
    @periodic("the unit tests repeat requests in flight")
    def test_a_repeat_while_the_first_request_is_in_flight_waits_for_the_same_delivery(self):
        api = self.api(api=["publish_timeout_seconds = 120"])
        self.assertEqual(204, api.post(metric("warm"))[0])
        alone = self.in_flight(api)
        held = self.fixture.proxy.add(Fault.hold_answer(ApiKey.PRODUCE))
        answers = []

        def post():
            answers.append(api.post(metric("a"), self.KEY)[0])

        clients = [threading.Thread(target=post) for _ in range(3)]
        clients[0].start()
        self.wait_until(lambda: held.taken)
        for client in clients[1:]:
            client.start()
        self.wait_until(lambda: self.in_flight(api) == alone + len(clients), "all of them in flight")
        time.sleep(0.5)  # each worker has found the delivery for which it waits
        self.assertEqual([], answers)
        self.fixture.proxy.remove(held)
        for client in clients:
            client.join(PATIENCE_SECONDS)
        self.assertEqual([204] * 3, answers)
        self.assertEqual(2, len(self.log(self.topic, self.partitions)))

    def test_repeats_after_lost_responses_are_read_once(self):
        api = self.api(kafka=LOSSY, api=["publish_timeout_seconds = 0.2", "workers = 2"])
        self.assertEqual(204, self.until_204(api, [metric("warm")], "warm"))
        for fault in (
            Fault.cut_answer(ApiKey.PRODUCE, probability=0.2, seed=3, times=8),
            Fault.drop_answer(ApiKey.PRODUCE, probability=0.1, seed=3, times=2),
            Fault.delay_answer(ApiKey.PRODUCE, seconds=0.4, probability=0.2, seed=3, times=8),
        ):
            self.fixture.proxy.add(fault)
        self.refused = 0
        for bulk in range(20):
            body = [metric(f"m{bulk}.{number}") for number in range(10)]
            self.assertEqual(204, self.until_204(api, body, f"bulk-{bulk}"))
        self.assertGreater(self.refused, 0)  # at least one message was repeated
        read = [json.loads(value)["metric"]["name"] for value in self.read(self.topic, self.partitions).values()]
        with each_once():
            self.assertEqual(sorted(["warm", *(f"m{b}.{n}" for b in range(20) for n in range(10))]), sorted(read))

    def in_flight(self, api):
        """Return the number of requests in flight, including this one."""
        (found,) = [each.value for each in samples(api) if each.name.endswith("requests_in_flight")]
        return found

    refused = 0

    def until_204(self, api, body, key):
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            status, headers, reported_text = api.post(body, {"Idempotency-Key": key})
            if status == 204:
                return status
            self.assertLess(time.monotonic(), deadline, "the message is never delivered")
            self.assertEqual((503, "1"), (status, headers["retry-after"]))
            counts = [reported_text["error"][name] for name in ("delivered", "failed", "unknown")]
            self.assertEqual(len(body), sum(counts))
            self.refused += 1


@periodic("long outage; the normal run contains TestFrozenBroker")
class TestBrokerUnavailable(ApiProcessCase):
    def test_unknown_messages_arrive_when_the_broker_returns(self):
        api = self.api(api=["publish_timeout_seconds = 0.5"], command=api_stalled_after(0.2))
        self.wait_until(lambda: api.post(metric("before"), {"Idempotency-Key": "first"})[0] == 204)
        (node,) = self.cluster.nodes
        node.kill()
        status, headers, reported_text = api.post([metric("a"), metric("b")], {"Idempotency-Key": "k"})
        self.assertEqual((503, "1"), (status, headers["retry-after"]))
        self.assertEqual([0, 0, 2], [reported_text["error"][name] for name in ("delivered", "failed", "unknown")])
        status, _, reported_text = api.post(metric("c"))
        # Posts to a silent Kafka are refused without waiting; unsent messages are not stored.
        self.assertEqual(
            (503, [0, 1, 0]), (status, [reported_text["error"][name] for name in ("delivered", "failed", "unknown")])
        )
        self.assertEqual(503, api.request("GET", "/healthcheck")[0])
        node.restart()
        self.wait_until(lambda: api.post([metric("a"), metric("b")], {"Idempotency-Key": "k"})[0] == 204)
        self.wait_until(lambda: api.request("GET", "/healthcheck")[0] == 200)
        read = [json.loads(value)["metric"]["name"] for value in self.read(self.topic, self.partitions).values()]
        self.assertEqual(["a", "b", "before"], sorted(read))

    def test_an_idle_api_reports_an_unavailable_broker(self):
        api = self.api()
        self.wait_until(lambda: api.request("GET", "/healthcheck")[0] == 200)
        self.cluster.nodes[0].kill()
        self.wait_until(lambda: api.request("GET", "/healthcheck")[0] == 503)


class TestStuckTopic(ApiProcessCase):
    LOGS = "/v2.0/logs"
    A_LOG = {"logs": [{"message": "a"}]}  # noqa: RUF012

    def test_only_posts_to_the_stuck_topic_are_refused(self):
        logs = self.fixture.topic()
        api = self.api(
            api=[f"logs_topic = {logs}", "publish_timeout_seconds = 1"],
            command=api_stalled_after(0.5),
        )
        self.wait_until(lambda: api.post(self.A_LOG, path=self.LOGS)[0] == 204)
        held = self.fixture.proxy.add(Fault.hold_answer(ApiKey.PRODUCE, where=lambda r: logs.encode() in r.frame))
        self.assertEqual(503, api.post(self.A_LOG, path=self.LOGS)[0])
        for _ in range(3):
            self.wait_until(lambda: api.post(metric())[0] == 204)
            status, headers, reported_text = api.post(self.A_LOG, path=self.LOGS)
            self.assertEqual((503, "1", 1), (status, headers["retry-after"], reported_text["error"]["failed"]))
        self.wait_until(lambda: self.producers_health(api) == (200, [logs]))
        self.fixture.proxy.remove(held)
        self.wait_until(lambda: api.post(self.A_LOG, path=self.LOGS)[0] == 204)
        self.wait_until(lambda: self.producers_health(api) == (200, []))

    def producers_health(self, api):
        status, _, reported_text = api.request("GET", "/healthcheck?part=producer")
        return status, reported_text["producer"].get("stalled_topics", [])


class FloodCase(ApiProcessCase):
    def flood(self, api, body, connections, *, seconds=0.0):
        """Post on several connections concurrently, repeatedly until ``seconds`` have passed.

        Return status, seconds and number of unknown messages of each request; the status is ``None`` if the connection
        ended without a response.
        """
        request = (
            f"POST {METRICS} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        ).encode() + body
        answers, end = [], time.monotonic() + seconds
        with selectors.DefaultSelector() as waiting:

            def post():
                client = socket.create_connection(("127.0.0.1", api.port))
                client.sendall(request)
                waiting.register(client, selectors.EVENT_READ, time.monotonic())

            for _ in range(connections):
                post()
            while waiting.get_map() and time.monotonic() < end + PATIENCE_SECONDS:
                for key, _ in waiting.select(0.1):
                    now = time.monotonic()
                    waiting.unregister(key.fileobj)
                    text = b""
                    # After a refusal of an unread request, the connection may be reset.
                    with key.fileobj, contextlib.suppress(ConnectionResetError):
                        while not text.endswith(b"}") and (part := key.fileobj.recv(4096)):
                            text += part
                    unknown = re.search(rb'"unknown": ?(\d+)', text)
                    status = int(text.split()[1]) if text else None
                    answers.append((status, now - key.data, int(unknown[1]) if unknown else 0))
                    if now < end:
                        post()
            silent = [key.fileobj for key in waiting.get_map().values()]
            for client in silent:
                client.close()
        self.assertEqual([], silent, "requests received no response")
        return answers


class TestFrozenBroker(FloodCase):
    LIMIT = 32
    CONNECTIONS = 10 * LIMIT
    WAIT = 0.6
    AT_ONCE = 60.0  # one second on an idle machine; the posts that waited for Kafka are counted

    def test_ten_times_as_many_requests_as_the_limit_get_a_response_immediately(self):
        api = self.api(api=[f"max_in_flight = {self.LIMIT}", f"publish_timeout_seconds = {self.WAIT}"])
        self.wait_until(lambda: api.post(metric("warm"))[0] == 204)  # the first request can be slow
        (worker,) = api.workers()
        before = psutil.Process(worker.pid).memory_info().rss
        self.cluster.nodes[0].freeze()
        grown = 0
        for _ in range(3):
            body = json.dumps([metric(f"m{number}") for number in range(100)]).encode()
            began = time.monotonic()
            answers = self.flood(api, body, self.CONNECTIONS)
            waits = 1 + (time.monotonic() - began) // self.WAIT  # one after another, if posting takes that long
            self.assertEqual(self.CONNECTIONS, len(answers))
            self.assertLessEqual({status for status, _, _ in answers}, {503, None})  # answered or disconnected
            self.assertLess(max(seconds for _, seconds, _ in answers), self.AT_ONCE)
            # Only posts that waited for Kafka have unknown messages.
            waited = sum(unknown > 0 for _, _, unknown in answers)
            self.assertTrue(0 < waited <= waits * self.LIMIT, f"{waited} waited")
            grown = max(grown, psutil.Process(worker.pid).memory_info().rss - before)
        self.assertLess(grown, 50_000_000)
        self.cluster.nodes[0].thaw()
        self.wait_until(lambda: api.post(metric("after"))[0] == 204)

    # Rule 50
    def test_health_requests_get_a_response_while_all_slots_wait_for_kafka(self):
        api = self.api(api=["max_in_flight = 4", "publish_timeout_seconds = 4"])
        self.wait_until(lambda: api.post(metric("warm"))[0] == 204)
        self.cluster.nodes[0].freeze()
        answers, taken = [], []
        body = json.dumps([metric()]).encode()
        posts = threading.Thread(target=lambda: answers.extend(self.flood(api, body, 40, seconds=2.0)))
        posts.start()
        while posts.is_alive():
            began = time.monotonic()
            self.assertEqual(200, api.request("GET", "/healthz")[0])
            taken.append(time.monotonic() - began)
            time.sleep(0.02)
        self.assertGreater(sum(unknown > 0 for _, _, unknown in answers), 0)  # some waited for Kafka
        self.assertGreaterEqual(len(answers), 40)
        self.assertLess(max(taken), 1.0)
