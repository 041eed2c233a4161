# SPDX-License-Identifier: Apache-2.0
from oslotest import base

from monasca_common.kafka.clock import SystemClock
from monasca_common.kafka.errors import ClosedError, HandlerError, MessagingError
from monasca_common.kafka.processor.shutdown import Shutdown
from monasca_common.kafka.settings import ConnectionSettings, ConsumerSettings

SETTINGS = ConsumerSettings(connection=ConnectionSettings("b:9092"), topics=("t",), group_id="g")


def broken():
    raise ClosedError("closed by another thread")


class ShutdownTest(base.BaseTestCase):
    def ended_by(self, failure):
        shutdown = Shutdown(SystemClock(), SETTINGS)
        if failure is not None:
            shutdown.fail(failure)
        return self.assertRaises(MessagingError, shutdown.conclude, broken)

    def test_a_failure_keeps_its_cause_if_the_shutdown_fails_too(self):
        failure = HandlerError("the handler broke")
        failure.__cause__ = ValueError("its own")
        self.assertIs(failure, self.ended_by(failure))
        self.assertIsInstance(failure.__cause__, ValueError)

    def test_without_another_failure_the_failure_of_the_shutdown_is_raised(self):
        self.assertIsInstance(self.ended_by(None), ClosedError)
