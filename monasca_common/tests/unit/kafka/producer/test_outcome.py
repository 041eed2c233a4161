# SPDX-License-Identifier: Apache-2.0
from confluent_kafka import KafkaError
from oslotest import base

from monasca_common.kafka.errors import DeliveryAbandoned, RetriableError, TransportError
from monasca_common.kafka.producer import outcome
from monasca_common.kafka.producer.outcome import Outcome, classify


class ClassifyTest(base.BaseTestCase):
    def outcome(self, name, code, *, trouble=False):
        return classify(TransportError(name, code=code, name=name), trouble=trouble)[0]

    def test_a_rejection_without_connection_errors_is_failed(self):
        self.assertIs(Outcome.FAILED, self.outcome("TOPIC_AUTHORIZATION_FAILED", 29))

    def test_every_response_that_a_broker_gives_before_it_appends_is_failed(self):
        for name, code in {
            "INVALID_MSG": 2,
            "UNKNOWN_TOPIC_OR_PART": 3,
            "MSG_SIZE_TOO_LARGE": 10,
            "TOPIC_EXCEPTION": 17,
            "RECORD_LIST_TOO_LARGE": 18,
            "NOT_ENOUGH_REPLICAS": 19,
            "CLUSTER_AUTHORIZATION_FAILED": 31,
            "INVALID_TIMESTAMP": 32,
            "INVALID_RECORD": 87,
        }.items():
            self.assertIs(Outcome.FAILED, self.outcome(name, code), name)

    # Rule 5
    def test_a_response_that_may_come_after_an_append_is_unknown(self):
        for name, code in {
            "DUPLICATE_SEQUENCE_NUMBER": 46,
            "OUT_OF_ORDER_SEQUENCE_NUMBER": 45,
            "UNKNOWN_PRODUCER_ID": 59,
            "INVALID_PRODUCER_EPOCH": 47,
            "NOT_ENOUGH_REPLICAS_AFTER_APPEND": 20,
            "REQUEST_TIMED_OUT": 7,
            "NOT_LEADER_FOR_PARTITION": 6,
            "KAFKA_STORAGE_ERROR": 56,
            "NETWORK_EXCEPTION": 13,
        }.items():
            self.assertIs(Outcome.UNKNOWN, self.outcome(name, code), name)

    def test_an_unknown_error_code_makes_the_outcome_unknown(self):
        self.assertIs(Outcome.UNKNOWN, self.outcome("ERR_139?", 139))

    def test_the_client_has_the_listed_names(self):
        names = {getattr(KafkaError, name): name for name in outcome._NEVER_APPENDED}
        self.assertEqual(names, {code: KafkaError(code).name() for code in names})

    def test_the_same_rejection_is_unknown_after_a_connection_error(self):
        self.assertIs(Outcome.UNKNOWN, self.outcome("TOPIC_AUTHORIZATION_FAILED", 29, trouble=True))

    def test_an_unknown_partition_is_always_failed(self):
        self.assertIs(Outcome.FAILED, self.outcome("_UNKNOWN_PARTITION", -190, trouble=True))

    # Rule 5
    def test_every_outcome_that_the_client_decides_itself_is_unknown(self):
        codes = {"_MSG_TIMED_OUT": -192, "_TRANSPORT": -195, "_INCONSISTENT": -149, "_FATAL": -150, "_NEW_ONE": -1}
        for name, code in codes.items():
            self.assertIs(Outcome.UNKNOWN, self.outcome(name, code), name)

    # Rule 5
    def test_every_purge_is_unknown_because_some_messages_were_in_the_log(self):
        for name, code in {"_PURGE_QUEUE": -152, "_PURGE_INFLIGHT": -151}.items():
            outcome, error = classify(TransportError(name, code=code, name=name), trouble=False)
            self.assertIs(Outcome.UNKNOWN, outcome)
            self.assertIsInstance(error, DeliveryAbandoned)

    def test_a_retriable_code_does_not_exclude_duplicates(self):
        cause = RetriableError("x", code=19, name="NOT_ENOUGH_REPLICAS")
        self.assertIs(Outcome.FAILED, classify(cause, trouble=False)[0])

    def test_only_refusals_because_of_the_message_are_permanent(self):
        for name, code, permanent in (("INVALID_RECORD", 87, True), ("MSG_SIZE_TOO_LARGE", 10, False)):
            error = classify(TransportError(name, code=code, name=name), trouble=False)[1]
            self.assertEqual(permanent, error.permanent, name)
