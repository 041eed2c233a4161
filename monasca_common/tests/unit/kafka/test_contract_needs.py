# SPDX-License-Identifier: Apache-2.0
"""Contracts that need a missing capability are expected to fail. One that passes counts as a failure."""

import types
import unittest

import testtools

from monasca_common.tests.contracts import Capability, needs


def outcome_of(test, capabilities):
    """Return the result of a contract on a cluster with these capabilities."""
    body = test

    class Contract(testtools.TestCase):
        cluster = types.SimpleNamespace(capabilities=capabilities, patience_seconds=1.0)

        @needs(Capability.TRANSACTIONS)
        def test(self):
            body(self)

    result = unittest.TestResult()
    Contract("test").run(result)
    return result


def passing(case):
    pass


def failing(case):
    case.fail("not here")


def raising(case):
    raise NotImplementedError


class NeedsTest(testtools.TestCase):
    def test_a_cluster_with_the_feature_passes_or_fails_as_usual(self):
        self.assertTrue(outcome_of(passing, {Capability.TRANSACTIONS}).wasSuccessful())
        self.assertEqual(1, len(outcome_of(failing, {Capability.TRANSACTIONS}).failures))

    def test_a_failure_without_the_feature_is_expected(self):
        for test in (failing, raising):
            result = outcome_of(test, set())
            self.assertEqual((1, True), (len(result.expectedFailures), result.wasSuccessful()))

    def test_a_pass_without_the_feature_is_a_failure(self):
        result = outcome_of(passing, set())
        self.assertEqual((1, False), (len(result.failures), result.wasSuccessful()))
