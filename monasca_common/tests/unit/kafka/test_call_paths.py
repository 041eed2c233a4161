# SPDX-License-Identifier: Apache-2.0
"""How many files a reader must open to follow one message: counted in real calls on the memory driver."""

import sys
from itertools import pairwise

from oslotest import base

from monasca_common.kafka.testing import MemoryKafka


class CallPathTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        kafka = self.useFixture(MemoryKafka())
        kafka.broker.create_topic("t", 1)
        self.producer = kafka.producer()
        self.producer.publish("t", [b"the limit of the topic is known from now on"], timeout=30)

    def files_of(self, call):
        """The files that ``call`` enters on this thread, in order; the driver counts as none."""
        files = []

        def note(frame, event, _argument):
            _, _, file = frame.f_code.co_filename.partition("/monasca_common/")
            if event == "call" and file and not file.startswith(("tests/", "kafka/transport/")):
                files.append(file)

        sys.setprofile(note)
        try:
            call()
        finally:
            sys.setprofile(None)
        return files

    def returns(self, files):
        """How often the path comes back to a file that it has left."""
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
