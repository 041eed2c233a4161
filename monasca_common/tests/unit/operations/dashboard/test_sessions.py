# SPDX-License-Identifier: Apache-2.0
from oslotest import base

from monasca_common.operations.dashboard import sessions
from monasca_common.operations.dashboard.sessions import Account, LoginAttempts, Sessions


class SessionsTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.now = 0.0
        self.sessions = Sessions(100, lambda: self.now)

    def test_a_session_is_found_by_its_cookie_until_its_time_is_over(self):
        cookie = self.sessions.open(Account("ada"))
        self.now = 99
        self.assertEqual("ada", self.sessions.find(cookie))
        self.now = 100
        self.assertIsNone(self.sessions.find(cookie))

    def test_a_session_ends_with_its_token(self):
        cookie = self.sessions.open(Account("ada", 30))
        self.now = 31
        self.assertIsNone(self.sessions.find(cookie))

    def test_a_logout_ends_the_session(self):
        cookie, other = self.sessions.open(Account("ada")), self.sessions.open(Account("ada"))
        self.sessions.close(cookie)
        self.assertIsNone(self.sessions.find(cookie))
        self.assertIsNotNone(self.sessions.find(other))

    def test_the_oldest_session_ends_if_there_are_too_many(self):
        first = self.sessions.open(Account("ada"))
        cookies = [self.sessions.open(Account("ada")) for _ in range(sessions._MAX_SESSIONS)]
        self.assertIsNone(self.sessions.find(first))
        self.assertEqual(len(cookies), len({*cookies}))
        self.assertIsNotNone(self.sessions.find(cookies[0]))


class LoginAttemptsTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.now = 1000.0
        self.attempts = LoginAttempts(lambda: self.now)

    def test_an_attempt_beyond_the_limit_waits_until_the_first_failure_expires(self):
        self.assertEqual([0] * 10 + [300], [self.attempts.reserve("ada", "10.0.0.1") for _ in range(11)])
        self.now += 299
        self.assertEqual(1, self.attempts.reserve("ada", "10.0.0.1"))
        self.now += 1
        self.assertEqual(0, self.attempts.reserve("ada", "10.0.0.1"))

    def test_wrong_passwords_from_one_address_do_not_lock_a_user_out_elsewhere(self):
        waits = [self.attempts.reserve("ada", "10.6.6.6") for _ in range(11)]
        self.assertEqual([0] * 10 + [300], waits)
        self.assertEqual(0, self.attempts.reserve("ada", "10.0.0.1"))
        self.assertEqual(0, self.attempts.reserve("grace", "10.6.6.6"))

    def test_an_address_is_limited_over_all_users(self):
        for number in range(100):
            self.attempts.reserve(f"user {number}", "10.0.0.1")
        self.assertEqual(300, self.attempts.reserve("d", "10.0.0.1"))
        self.assertEqual(0, self.attempts.reserve("d", "10.0.0.2"))

    def test_a_success_forgets_the_failures_of_the_user_at_the_address(self):
        for _ in range(10):
            self.attempts.reserve("ada", "10.0.0.1")
        self.attempts.succeeded("ada", "10.0.0.1")
        self.assertEqual(0, self.attempts.reserve("ada", "10.0.0.1"))

    def test_a_success_does_not_change_the_failures_of_the_address(self):
        for number in range(99):
            self.attempts.reserve(f"user {number}", "10.0.0.1")
        self.attempts.reserve("ada", "10.0.0.1")
        self.attempts.succeeded("ada", "10.0.0.1")
        self.assertEqual([0, 300], [self.attempts.reserve(user, "10.0.0.1") for user in ("mary", "joan")])

    def test_many_names_do_not_fill_the_memory(self):
        for number in range(sessions._MAX_KEYS + 10):
            self.attempts.reserve(str(number), str(number))
        self.assertEqual(sessions._MAX_KEYS, len(self.attempts._failed))
