# SPDX-License-Identifier: Apache-2.0
from confluent_kafka import KafkaError
from oslotest import base

from monasca_common.kafka.errors import RetriableError
from monasca_common.kafka.transport.faults import translate


class TranslateTest(base.BaseTestCase):
    def test_who_has_not_heard_of_a_partitions_latest_leader_is_asked_again(self):
        for code in (KafkaError.FENCED_LEADER_EPOCH, KafkaError.UNKNOWN_LEADER_EPOCH, KafkaError.OFFSET_NOT_AVAILABLE):
            self.assertIsInstance(translate(KafkaError(code)), RetriableError)
