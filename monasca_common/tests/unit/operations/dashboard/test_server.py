# SPDX-License-Identifier: Apache-2.0
"""A request has to come in time, and what is done with it may take its time."""

import os
import selectors
import socket
import threading
from functools import partial

from gunicorn.config import Config
from gunicorn.workers.gthread import TConn
from oslotest import base

from monasca_common.operations.dashboard.server import ClientWaits, DashboardLog, DashboardServer, DashboardWorker
from monasca_common.operations.dashboard.settings import DashboardSettings

_HEAD = b"POST /login HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n"
_PATIENCE_SECONDS = 60


class Worker(DashboardWorker):
    request_seconds = 0.2


class RequestTimeTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.bodies = []
        self.client, self.server = socket.socketpair()
        for each in (self.client, self.server):
            self.addCleanup(each.close)
            each.settimeout(_PATIENCE_SECONDS)
        cfg = Config()
        cfg.set("errorlog", None)
        self.worker = Worker(0, os.getppid(), [], None, 30, cfg, DashboardLog(cfg))
        self.addCleanup(self.worker.tmp.close)
        self.worker.alive = True
        self.worker.wsgi = partial(Worker.read_first, self.answer)
        self.conn = TConn(cfg, self.server, ("127.0.0.1", 1), ("127.0.0.1", 2))

    def answer(self, environ, start_response):
        self.bodies.append(environ["wsgi.input"].read())
        self.waiting = dict(self.worker.waits._waiting)
        start_response("200 OK", [("Content-Length", "0")])
        return []

    def drip(self, *pieces):
        """Sends the last piece again and again, until somebody ends it; that has to be the server."""

        def send():
            try:
                for piece in pieces:
                    self.client.sendall(piece)
                while not self.over.wait(0.01):
                    self.client.sendall(pieces[-1])
            except OSError:
                self.over.set()

        self.over = threading.Event()
        sending = threading.Thread(target=send)
        sending.start()
        self.addCleanup(sending.join)
        self.addCleanup(self.over.set)
        self.assertFalse(self.worker.handle(self.conn))
        self.assertTrue(self.over.wait(_PATIENCE_SECONDS), "the server did not end it")

    def test_a_head_that_comes_drop_by_drop_is_cut_off(self):
        self.drip(_HEAD % 5 + b"X-Much: ", b"a")
        self.assertEqual([], self.bodies)

    def test_a_form_that_comes_drop_by_drop_is_cut_off(self):
        self.drip(_HEAD % 8000 + b"\r\n", b"a")

    def test_a_request_that_is_here_may_be_answered_later(self):
        self.worker.request_seconds = _PATIENCE_SECONDS
        self.client.sendall(_HEAD % 5 + b"\r\na=b&c")
        self.worker.handle(self.conn)
        self.assertIn(b"200 OK", self.client.recv(1000))
        self.assertEqual(([b"a=b&c"], {}), (self.bodies, self.waiting))
        self.assertEqual({}, self.worker.waits._waiting)

    def test_a_connection_has_no_thread_before_its_client_sends_something(self):
        self.worker.poller = selectors.DefaultSelector()
        self.addCleanup(self.worker.poller.close)
        self.worker.tpool = None  # nothing may be put there
        self.worker.enqueue_req(self.conn)
        self.assertEqual([self.conn], list(self.worker.pending_conns))

    def test_of_an_address_with_many_idle_connections_the_longest_idle_one_ends(self):
        self.worker.poller = selectors.DefaultSelector()
        self.addCleanup(self.worker.poller.close)
        self.worker.nr_conns = 52
        conns, clients = zip(*(self.pair("10.0.0.1") for _ in range(51)), strict=True)
        other, _others_client = self.pair("10.0.0.2")
        for conn in (other, *conns):
            self.worker.enqueue_req(conn)
        self.assertEqual([other, *conns[1:]], list(self.worker.pending_conns))
        self.assertEqual((b"", 51), (clients[0].recv(1), self.worker.nr_conns))

    def test_a_connection_that_sends_while_it_is_ended_for_another_one_does_not_end_the_worker(self):
        for is_new in (True, False):
            self.worker.poller = selectors.DefaultSelector()
            self.addCleanup(self.worker.poller.close)
            conns, clients = zip(*(self.pair("10.0.0.1") for _ in range(50)), strict=True)
            for conn in conns:
                self.make_idle(conn, is_new=is_new)
            listener, knocking = socket.socketpair()
            self.addCleanup(listener.close)
            self.addCleanup(knocking.close)
            another, _its_client = self.pair("10.0.0.1")
            accept = partial(lambda each, _: self.worker.enqueue_req(each), another)
            self.worker.poller.register(listener, selectors.EVENT_READ, accept)
            knocking.send(b"another comes, and in the same round")
            clients[0].send(b"the first one sends")
            self.worker.wait_for_and_dispatch_events(_PATIENCE_SECONDS)
            self.assertEqual(50, len(self.worker.pending_conns) + len(self.worker.keepalived_conns))
            self.worker.pending_conns.clear()
            self.worker.keepalived_conns.clear()

    def make_idle(self, conn, *, is_new):
        """As gunicorn does before the first request, and after one."""
        if is_new:
            self.worker.enqueue_req(conn)
            return
        conn.set_timeout()
        self.worker.keepalived_conns.append(conn)
        readable = partial(self.worker.on_client_socket_readable, conn)
        self.worker.poller.register(conn.sock, selectors.EVENT_READ, readable)

    def pair(self, address):
        client, server = socket.socketpair()
        for each in (client, server):
            self.addCleanup(each.close)
        client.settimeout(_PATIENCE_SECONDS)
        return TConn(self.worker.cfg, server, (address, 1), ("127.0.0.1", 2)), client

    def test_of_an_address_with_many_slow_requests_the_oldest_one_ends_and_no_other_address_s(self):
        waits = ClientWaits(2, 10)
        conns, clients = zip(*(self.pair(f"10.0.0.{last}") for last in (1, 2, 1, 1)), strict=True)
        for conn in conns:
            waits.begin(conn)
        self.assertEqual(b"", clients[0].recv(1))
        for client in clients[1:]:
            client.setblocking(False)
            self.assertRaises(BlockingIOError, client.recv, 1)
        for conn in conns:
            waits.end(conn)
        self.assertEqual({}, waits._waiting)

    def test_slow_addresses_that_have_all_threads_but_one_lose_their_oldest_connections(self):
        for slow in ([1] * 8 + [2] * 7, range(1, 16)):
            conns, clients = zip(*(self.pair(f"10.0.0.{last}") for last in slow), strict=True)
            self.worker.waits = ClientWaits(8, 15)
            for conn in conns:
                self.worker.waits.begin(conn)
            honest, its_client = self.pair("10.0.1.1")
            self.worker.waits.begin(honest)
            self.assertEqual(b"", clients[0].recv(1))
            for client in (*clients[1:], its_client):
                client.setblocking(False)
                self.assertRaises(BlockingIOError, client.recv, 1)
            self.assertEqual(15, sum(map(len, self.worker.waits._waiting.values())))

    def test_a_thread_is_free_for_another_address_while_slow_ones_have_the_others(self):
        self.assertEqual((8, 15), (self.worker.waits._most, self.worker.waits._most_in_all))

    def test_a_proxy_whose_address_all_clients_have_is_waited_for_by_all_threads_but_one(self):
        for options, at_once in (({}, 8), ({"tls_at_proxy": True}, 15)):
            server = DashboardServer(DashboardSettings(**options), None, None)
            kind = server.cfg.worker_class
            self.assertEqual((at_once, 16), (kind.waited_for_at_an_address, server.cfg.threads))
