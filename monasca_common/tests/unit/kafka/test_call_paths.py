# SPDX-License-Identifier: Apache-2.0
"""Counts the files that one message passes through, from real calls on the memory driver."""

import contextlib
import sys
import threading
from itertools import pairwise

from oslotest import base

from monasca_common.kafka.errors import Poison
from monasca_common.kafka.processor.hooks import Hook
from monasca_common.kafka.testing import MemoryKafka
from monasca_common.tests.unit.kafka.processor.processor_case import ProcessorCase


def product_file(frame):
    """Return the file of a call within the package; empty for tests, for the driver, and outside the package."""
    _, _, file = frame.f_code.co_filename.partition("/monasca_common/")
    return "" if file.startswith(("tests/", "kafka/transport/")) else file


class CallPathTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        kafka = self.useFixture(MemoryKafka())
        kafka.broker.create_topic("t", 1)
        self.producer = kafka.producer()
        self.producer.publish("t", [b"the limit of the topic is known from now on"], timeout=30)

    def files_of(self, call):
        """Return the files that ``call`` enters on this thread, in order, without the driver."""
        files = []

        def note(frame, event, _argument):
            if event == "call" and (file := product_file(frame)):
                files.append(file)

        sys.setprofile(note)
        try:
            call()
        finally:
            sys.setprofile(None)
        return files

    def returns(self, files):
        """Return how many times the path returns to a file that it has left."""
        left, count = set(), 0
        for before, after in pairwise(files):
            if before != after:
                left.add(before)
                count += after in left
        return count

    def test_a_publish_enters_six_files(self):
        files = self.files_of(lambda: self.producer.publish("t", [b"x"], timeout=30).raise_for_undelivered())
        self.assertLessEqual(len(set(files)), 6, sorted(set(files)))
        self.assertLessEqual(self.returns(files), 10, files)

    def test_a_send_enters_two_files(self):
        self.producer.send("t", b"x")
        files = self.files_of(lambda: self.producer.send("t", b"x"))
        self.assertLessEqual(len(set(files)), 2, sorted(set(files)))


class Journeys(Hook):
    """The files that the threads of a processor enter, for each of its commits: from the call of `poll` that returns
    the messages to the end of their commit, with the loop iterations in between.

    The threads are those that start within `profiled`: the polling thread, the handler threads, and the thread of the
    consumer's client, which sends the commit.
    """

    def __init__(self):
        self.ended = []
        self._files = set()
        self._polled = False

    @contextlib.contextmanager
    def profiled(self):
        threading.setprofile(self._note)
        try:
            yield
        finally:
            threading.setprofile(None)

    def after_poll(self, batch):
        self._polled = self._polled or len(batch) > 0

    def after_commit(self, outcomes):
        self.ended.append(sorted(self._files))
        self._polled = False

    def _note(self, frame, event, _argument):
        if event != "call" or not (file := product_file(frame)):
            return
        if not self._polled and (file, frame.f_code.co_name) == ("kafka/consumer/consumer.py", "poll"):
            self._files.clear()
        self._files.add(file)


class ProcessorPathTest(ProcessorCase):
    def files_of(self, handler):
        """Return the files that the second message enters; the first message opens the clients and starts the
        partition."""
        self.fill(b"1")
        journeys = Journeys()
        with journeys.profiled():
            self.start(handler, hooks=[journeys])
            self.until(lambda: journeys.ended)
        self.fill(b"2")
        self.until(lambda: len(journeys.ended) == 2)
        self.assertEqual(2, self.committed())
        return journeys.ended[1]

    def test_a_handled_message_enters_16_files(self):
        files = self.files_of(lambda part: None)
        self.assertLessEqual(len(files), 16, files)

    def test_a_dead_letter_enters_24_files(self):
        def reject(part):
            raise Poison("not a metric")

        files = self.files_of(reject)
        self.assertEqual([b"1", b"2"], self.values("in.dlq"))
        self.assertLessEqual(len(files), 24, files)
