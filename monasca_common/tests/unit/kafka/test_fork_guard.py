# SPDX-License-Identifier: Apache-2.0
import gc
import os
import subprocess
import sys
import textwrap

from oslotest import base

from monasca_common.kafka.errors import ForkedError
from monasca_common.kafka.fork_guard import ForkGuard
from monasca_common.kafka.testing import MemoryKafka


class Handle:
    """Represents a native client: aborts a process that destroys it but did not create it."""

    def __init__(self):
        self.pid = os.getpid()

    def __del__(self):
        if os.getpid() != self.pid:
            os._exit(6)


def exit_code_of_child(in_child):
    gc.collect()  # garbage of other tests can contain native clients, which a collection in the child would destroy
    pid = os.fork()
    if pid == 0:
        try:
            code = in_child()
        except BaseException:
            code = 1
        os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


class TestForkGuard(base.BaseTestCase):
    def test_the_process_that_opened_a_client_may_use_it(self):
        guard = ForkGuard("KafkaConsumer")
        guard.check()
        self.assertFalse(guard.forked)

    def test_a_child_is_refused_with_the_remedy(self):
        guard = ForkGuard("KafkaConsumer")

        def in_child():
            try:
                guard.check()
            except ForkedError as error:
                return 0 if "KafkaConsumer" in str(error) and "after the fork" in str(error) else 2
            return 3

        self.assertEqual(0, exit_code_of_child(in_child))

    def test_a_consumer_that_has_polled_is_refused_in_a_child(self):
        kafka = self.useFixture(MemoryKafka())
        kafka.broker.create_topic("metrics", 1)
        consumer = kafka.consumer("metrics")
        consumer.poll(timeout=0)

        def in_child():
            try:
                consumer.poll(timeout=0)
            except ForkedError:
                return 0
            return 3

        self.assertEqual(0, exit_code_of_child(in_child))
        consumer.poll(timeout=0)

    def test_a_pinned_handle_is_not_destroyed_in_a_child(self):
        guard = ForkGuard("KafkaConsumer")
        handle = Handle()
        guard.pin(handle)

        def in_child():
            nonlocal handle
            guard.unpin()
            del handle
            gc.collect()
            return 0

        self.assertEqual(0, exit_code_of_child(in_child))

    # Rule 10
    def test_a_handle_that_is_not_pinned_would_be_destroyed(self):
        handle = Handle()

        def in_child():
            nonlocal handle
            del handle
            gc.collect()
            return 0

        self.assertEqual(6, exit_code_of_child(in_child))


class TestGreenThreads(base.BaseTestCase):
    def _open_after(self, patch):
        program = textwrap.dedent("""
            from monasca_common.kafka.errors import ConfigurationError
            from monasca_common.kafka.fork_guard import ForkGuard
            try:
                ForkGuard("KafkaProducer")
            except ConfigurationError as error:
                print(error)
        """)
        run = [sys.executable, "-W", "ignore", "-c", patch + "\n" + program]
        return subprocess.run(run, capture_output=True, text=True, timeout=60, check=True).stdout

    def test_a_process_patched_by_gevent_is_refused(self):
        self.assertIn("gevent", self._open_after("from gevent import monkey; monkey.patch_all()"))

    def test_a_process_patched_by_eventlet_is_refused(self):
        self.assertIn("eventlet", self._open_after("import eventlet; eventlet.monkey_patch()"))

    def test_importing_gevent_has_no_effect(self):
        self.assertEqual("", self._open_after("import gevent.monkey"))
