# SPDX-License-Identifier: Apache-2.0
"""The health of a member while the database is unavailable."""

from oslotest import base

from monasca_common.kafka import RegistryUnavailable, RetryLater
from monasca_common.kafka.message import Message, TopicPartition
from monasca_common.kafka.transport.memory import VirtualClock
from monasca_common.notification.member import NotificationMember
from monasca_common.runtime.member_health import MemberHealth, MemberState, MemberStatus

TP = TopicPartition("transitions", 0)
MESSAGE = Message(*TP, 7, None, None, b"m", ())


class WaitsTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.member = NotificationMember.__new__(NotificationMember)
        self.member.health = self.health = MemberHealth(MemberStatus("transitions"), VirtualClock())
        self.health.begin()
        self.health.starts_at({TP: MESSAGE.offset})

    def call(self, error=None):
        def handler(_message):
            if error is not None:
                raise error

        self.member._handler = handler
        if error is None:
            self.member._handle(None, MESSAGE)
        else:
            self.assertRaises(type(error), self.member._handle, None, MESSAGE)
        return self.health.report(None).state

    def test_the_member_waits_for_the_database_until_a_message_is_handled(self):
        self.assertIs(MemberState.WAITING_FOR_DATABASE, self.call(RetryLater()))
        self.assertIs(MemberState.RUNNING, self.call())

    def test_an_unavailable_schema_registry_is_not_a_wait_for_the_database(self):
        self.assertIs(MemberState.RUNNING, self.call(RegistryUnavailable("x", 1.0)))

    def test_a_handler_that_fails_after_a_revoke_does_not_report_a_wait(self):
        self.health.after_revoke([TP])
        self.assertIs(MemberState.RUNNING, self.call(RetryLater()))
