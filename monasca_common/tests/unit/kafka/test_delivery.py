# SPDX-License-Identifier: Apache-2.0
from oslotest import base

from monasca_common.kafka.delivery import Outcome, classify
from monasca_common.kafka.errors import DeliveryAbandoned, RetriableError, TransportError


class ClassifyTest(base.BaseTestCase):
    def outcome(self, name, code, *, trouble=False):
        return classify(TransportError(name, code=code, name=name), trouble=trouble)[0]

    def test_a_rejection_by_the_broker_is_failed_while_the_connection_was_well(self):
        self.assertIs(Outcome.FAILED, self.outcome("TOPIC_AUTHORIZATION_FAILED", 29))

    def test_the_same_rejection_is_unknown_after_trouble_with_the_connection(self):
        self.assertIs(Outcome.UNKNOWN, self.outcome("TOPIC_AUTHORIZATION_FAILED", 29, trouble=True))

    def test_an_unknown_partition_is_failed_whatever_happened_before(self):
        self.assertIs(Outcome.FAILED, self.outcome("_UNKNOWN_PARTITION", -190, trouble=True))

    def test_everything_the_client_decides_by_itself_is_unknown(self):
        codes = {"_MSG_TIMED_OUT": -192, "_TRANSPORT": -195, "_INCONSISTENT": -149, "_FATAL": -150, "_NEW_ONE": -1}
        for name, code in codes.items():
            self.assertIs(Outcome.UNKNOWN, self.outcome(name, code), name)

    def test_every_purge_is_unknown_for_some_were_in_the_log(self):
        for name, code in {"_PURGE_QUEUE": -152, "_PURGE_INFLIGHT": -151}.items():
            outcome, error = classify(TransportError(name, code=code, name=name), trouble=False)
            self.assertIs(Outcome.UNKNOWN, outcome)
            self.assertIsInstance(error, DeliveryAbandoned)

    def test_whether_a_code_is_retriable_says_nothing_about_duplicates(self):
        cause = RetriableError("x", code=19, name="NOT_ENOUGH_REPLICAS")
        self.assertIs(Outcome.FAILED, classify(cause, trouble=False)[0])

    def test_only_what_the_message_itself_is_refused_for_is_permanent(self):
        for name, code, permanent in (("INVALID_RECORD", 87, True), ("MSG_SIZE_TOO_LARGE", 10, False)):
            error = classify(TransportError(name, code=code, name=name), trouble=False)[1]
            self.assertEqual(permanent, error.permanent, name)
