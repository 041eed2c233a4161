# SPDX-License-Identifier: Apache-2.0
import struct

from oslotest import base

from monasca_common.devbroker.framing import ApiKey, parse_request
from monasca_common.devbroker.proxy_rules import ActiveFault, Effect, Fault, FaultBook


def request(api_key=ApiKey.PRODUCE, node=1, acks=-1, body=b""):
    client = struct.pack(">h", -1)
    return parse_request(node, struct.pack(">hhi", api_key, 2, 5) + client + struct.pack(">h", acks) + body)


def taken(fault, *requests):
    active = ActiveFault(fault)
    return [active.takes(each) for each in requests]


class TestWhichRequestsAFaultTakes(base.BaseTestCase):
    def test_those_with_one_of_its_api_keys(self):
        fault = Fault.drop_answer(ApiKey.PRODUCE, ApiKey.FETCH)
        requests = [request(key) for key in (ApiKey.PRODUCE, ApiKey.METADATA, ApiKey.FETCH)]
        self.assertEqual([True, False, True], taken(fault, *requests))

    def test_all_where_it_names_no_api_key(self):
        self.assertEqual([True, True], taken(Fault.cut_request(), request(), request(ApiKey.METADATA)))

    def test_as_many_as_times_says(self):
        self.assertEqual([True, True, False], taken(Fault.cut_answer(times=2), *[request()] * 3))

    def test_after_those_that_are_skipped(self):
        self.assertEqual([False, False, True, False], taken(Fault.cut_answer(skip=2, times=1), *[request()] * 4))

    def test_skipping_counts_only_what_matches_otherwise(self):
        fault = Fault.cut_answer(ApiKey.PRODUCE, skip=1)
        self.assertEqual([False, False, True], taken(fault, request(ApiKey.FETCH), request(), request()))

    def test_those_to_one_node(self):
        self.assertEqual([False, True], taken(Fault.cut_answer(node=2), request(node=1), request(node=2)))

    def test_those_that_a_predicate_chooses(self):
        fault = Fault.cut_answer(where=lambda each: b"orders" in each.frame)
        self.assertEqual([False, True], taken(fault, request(body=b"other"), request(body=b"orders")))

    def test_a_fault_on_answers_takes_no_request_that_has_none(self):
        unanswered = request(acks=0)
        self.assertEqual([False], taken(Fault.drop_answer(), unanswered))
        self.assertEqual([True], taken(Fault.drop_request(), unanswered))

    def test_chance_is_the_same_for_the_same_seed(self):
        requests = [request()] * 1000
        first = taken(Fault.drop_answer(probability=0.3, seed=7), *requests)
        self.assertEqual(first, taken(Fault.drop_answer(probability=0.3, seed=7), *requests))
        self.assertNotEqual(first, taken(Fault.drop_answer(probability=0.3, seed=8), *requests))
        self.assertTrue(250 < sum(first) < 350)

    def test_it_counts_what_it_took(self):
        active = ActiveFault(Fault.drop_answer(skip=1, times=2))
        for _ in range(5):
            active.takes(request())
        self.assertEqual(2, active.taken)


class TestFaultBook(base.BaseTestCase):
    def test_the_first_that_takes_a_request_is_the_one(self):
        book = FaultBook()
        first = book.add(Fault.cut_answer(times=1))
        second = book.add(Fault.drop_answer())
        self.assertEqual([first, second], [book.taking(request()) for _ in range(2)])
        self.assertEqual((1, 1), (first.taken, second.taken))

    def test_removed_faults_take_nothing(self):
        book = FaultBook()
        first, second = book.add(Fault.cut_answer()), book.add(Fault.cut_answer())
        book.remove(first)
        self.assertIs(second, book.taking(request()))
        self.assertEqual((second,), book.clear())
        self.assertIsNone(book.taking(request()))
        self.assertFalse(book)

    def test_only_effects_on_answers_wait_for_one(self):
        on_answer = {effect for effect in Effect if effect.on_answer}
        self.assertEqual({Effect.DELAY_ANSWER, Effect.DROP_ANSWER, Effect.CUT_ANSWER}, on_answer)
