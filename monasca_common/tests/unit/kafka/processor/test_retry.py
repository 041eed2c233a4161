# SPDX-License-Identifier: Apache-2.0
from hypothesis import given
from hypothesis import strategies as st
from oslotest import base

from monasca_common.kafka.errors import ConfigurationError
from monasca_common.kafka.processor.retry import RetryPolicy


class RetryPolicyTest(base.BaseTestCase):
    def test_delays_double_up_to_their_bound(self):
        policy = RetryPolicy(backoff_seconds=1, multiplier=2, max_backoff_seconds=5, jitter=0)
        self.assertEqual([1, 2, 4, 5, 5], [policy.delay(attempt, 0.3) for attempt in range(1, 6)])

    def test_jitter_shortens_the_delay_by_a_random_share(self):
        policy = RetryPolicy(backoff_seconds=8, max_backoff_seconds=8, jitter=0.5)
        self.assertEqual([8, 6, 4], [policy.delay(1, chance) for chance in (0, 0.5, 1)])

    @given(st.integers(1, 10**9), st.floats(0, 1, exclude_max=True), st.floats(1, 10))
    def test_no_attempt_is_too_late_for_a_finite_delay(self, attempt, chance, multiplier):
        policy = RetryPolicy(multiplier=multiplier)
        self.assertTrue(0 <= policy.delay(attempt, chance) <= policy.max_backoff_seconds)

    def test_the_last_of_the_attempts_is_final(self):
        policy = RetryPolicy(attempts=3)
        self.assertEqual([False, False, True, True], [policy.exhausted(attempt) for attempt in (1, 2, 3, 4)])

    def test_a_value_out_of_bounds_is_refused_by_name(self):
        for field, value in (("attempts", 0), ("backoff_seconds", -1), ("multiplier", 0.5), ("jitter", 2)):
            error = self.assertRaises(ConfigurationError, RetryPolicy, **{field: value})
            self.assertIn(f"{field}={value}", str(error))
