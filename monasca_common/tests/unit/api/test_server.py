# SPDX-License-Identifier: Apache-2.0
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

from gunicorn.config import Config
from oslotest import base

from monasca_common.api.server import Worker


class TestWorker(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.worker = Worker(1, 1, [], None, 30, Config(), None)
        self.addCleanup(self.worker.tmp.close)
        self.worker.method_queue.init()
        self.addCleanup(self.worker.method_queue.close)
        self.worker.tpool = ThreadPoolExecutor(1)
        self.addCleanup(self.worker.tpool.shutdown)

    def test_ctrl_c_ends_it_even_while_it_hands_a_request_to_its_threads(self):
        with self.worker.tpool._shutdown_lock:  # as its main thread has it then, which runs the handler
            handler = threading.Thread(target=self.worker.handle_quit, args=(signal.SIGINT, None), daemon=True)
            handler.start()
            handler.join(5)
            self.assertFalse(handler.is_alive(), "it waits for a lock that its own thread has")
        self.assertFalse(self.worker.alive)
        self.assertEqual(0, self.worker.cfg.graceful_timeout)

    def test_a_second_signal_changes_nothing(self):
        for _ in range(2):
            self.worker.handle_quit(signal.SIGQUIT, None)
        self.assertFalse(self.worker.alive)
