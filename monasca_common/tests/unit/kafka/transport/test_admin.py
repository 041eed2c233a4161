# SPDX-License-Identifier: Apache-2.0
import concurrent.futures

from confluent_kafka import KafkaError, KafkaException
from oslotest import base

from monasca_common.kafka.errors import AuthenticationError, RetriableError
from monasca_common.kafka.transport.admin import Admin


class Metadata:
    def __init__(self, brokers):
        self.brokers = brokers


class ScriptedClient:
    """Each step of a script is an answer, or the errors of a call: what the callback hears of it, what it raises."""

    def __init__(self, admin, script):
        self.admin = admin
        self.script = script
        self.unheard = []

    def list_topics(self, **_):
        step = self.script.pop(0)
        if isinstance(step, Metadata):
            return step
        heard, raised = step
        self.unheard += heard
        raise KafkaException(KafkaError(raised))

    def poll(self, _timeout):
        while self.unheard:
            self.admin._on_error(KafkaError(self.unheard.pop(0)))


class PatienceTest(base.BaseTestCase):
    def test_an_answer_that_does_not_come_may_come_another_time(self):
        admin = Admin.__new__(Admin)
        self.assertRaises(RetriableError, admin._result, concurrent.futures.Future(), -1)


class RefusalTest(base.BaseTestCase):
    def admin(self, *script):
        admin = Admin.__new__(Admin)
        admin._refusal = None
        admin._servers = "kafka1:9092,kafka2:9092"
        admin._client = ScriptedClient(admin, list(script))
        return admin

    def test_a_refused_login_is_told_in_place_of_the_time_out_that_comes_of_it(self):
        admin = self.admin(([KafkaError._AUTHENTICATION], KafkaError._TRANSPORT))
        self.assertRaises(AuthenticationError, admin.wait_for_brokers, 1, 0)

    def test_a_refusal_that_is_over_explains_no_later_failure(self):
        admin = self.admin(([KafkaError._SSL], KafkaError._TRANSPORT), Metadata([1]), ([], KafkaError._TIMED_OUT))
        self.assertRaises(AuthenticationError, admin.wait_for_brokers, 1, 0)
        admin.wait_for_brokers(1, 0)
        self.assertRaises(RetriableError, admin.wait_for_brokers, 1, 0)

    def test_brokers_that_do_not_answer_are_named_with_what_to_check(self):
        admin = self.admin(([], KafkaError._TRANSPORT))
        told = self.assertRaises(RetriableError, admin.wait_for_brokers, 1, 0)
        self.assertEqual("_TRANSPORT", told.name)
        self.assertIn("no answer from kafka1:9092,kafka2:9092: check that these brokers are up", str(told))
