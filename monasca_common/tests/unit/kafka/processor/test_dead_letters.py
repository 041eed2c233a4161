# SPDX-License-Identifier: Apache-2.0
import hashlib
from dataclasses import replace

from oslotest import base

from monasca_common.kafka.errors import AuthorizationError, ConfigurationError, DeadLetterLimit, Poison
from monasca_common.kafka.message import Message, Record, TopicPartition
from monasca_common.kafka.processor import dead_letters as dl
from monasca_common.kafka.transport.memory import Delay, Fail
from monasca_common.tests.unit.kafka.processor.processor_case import ONCE, ProcessorCase

TP = TopicPartition("t", 1)
MESSAGE = Message("t", 1, 7, 1234, b"key", b"value", (("a", b"1"), ("message-id", b"mid"), ("a", None)))
ERROR = ValueError("no good")


def refuse(*bad):
    """Return a handler that raises for a batch that contains one of these values."""

    def handler(part):
        if set(bad) & set(part.values):
            raise ValueError("bad")

    return handler


class DeadLetterTest(base.BaseTestCase):
    def test_a_dead_letter_has_the_message_and_its_origin(self):
        letter = dl.dead_letter(MESSAGE, ERROR, "group", attempts=3, first_failed_ms=99)
        self.assertEqual((b"value", b"key", b"group/t/1/7"), (letter.value, letter.key, letter.message_id))
        self.assertEqual((("a", b"1"), ("a", None)), letter.headers[:2])
        self.assertEqual(
            {
                dl.ORIGIN_MESSAGE_ID: b"mid",
                dl.ORIGIN_TOPIC: b"t",
                dl.ORIGIN_PARTITION: b"1",
                dl.ORIGIN_OFFSET: b"7",
                dl.ORIGIN_TIMESTAMP: b"1234",
                dl.GROUP: b"group",
                dl.ERROR_CLASS: b"ValueError",
                dl.ERROR_TEXT: b"no good",
                dl.ATTEMPTS: b"3",
                dl.FIRST_FAILURE: b"99",
            },
            dict(letter.headers[2:]),
        )

    def test_an_error_without_a_text_still_has_a_dead_letter(self):
        class Mute(Exception):
            def __str__(self):
                raise LookupError("no text")

        letter = dl.dead_letter(MESSAGE, Mute(), "group", attempts=1, first_failed_ms=1)
        self.assertEqual(b"the text of the error is not available: LookupError", dict(letter.headers)[dl.ERROR_TEXT])

    def test_a_dead_letter_has_the_time_of_the_first_failure_before_any_replay(self):
        for headers, failed in (
            (((dl.FIRST_FAILURE, b"5"),), b"99"),
            (((dl.FIRST_FAILURE, b"5"), (dl.REPLAYS, b"1")), b"5"),
        ):
            letter = dl.dead_letter(replace(MESSAGE, headers=headers), ERROR, "group", attempts=3, first_failed_ms=99)
            self.assertEqual([failed], [value for name, value in letter.headers if name == dl.FIRST_FAILURE])

    def test_a_shrunk_dead_letter_fits_and_keeps_its_origin(self):
        letter = dl.dead_letter(MESSAGE, ERROR, "group", attempts=3, first_failed_ms=99)
        big = Record(b"x" * 1000, letter.key, letter.headers)
        small = dl.shrink(big, size=1500, limit=1000)
        self.assertLessEqual(len(small.value or b""), 500)
        self.assertEqual((dl.VALUE_CUT_FROM, b"1000"), small.headers[-1])
        self.assertEqual(letter.headers, small.headers[:-1])

    def test_a_dead_letter_whose_key_is_too_large_keeps_at_least_its_origin(self):
        letter = dl.dead_letter(MESSAGE, ERROR, "group", attempts=3, first_failed_ms=99)
        smallest = dl.shrink(letter, size=5000, limit=1000)
        self.assertEqual((b"", None), (smallest.value, smallest.key))
        self.assertEqual(b"7", dict(smallest.headers)[dl.ORIGIN_OFFSET])
        self.assertNotIn("a", dict(smallest.headers))
        self.assertEqual(b"1", dict(smallest.headers)[dl.KEY_AND_HEADERS_DROPPED])


class LimitTest(base.BaseTestCase):
    def count(self, **limits):
        return dl.DeadLetterCount(dl.DeadLetters(**limits))

    def test_the_message_that_exceeds_the_consecutive_limit_is_refused(self):
        count = self.count(max_consecutive=2)
        count.admit(TP, ERROR)
        count.admit(TP, ERROR)
        self.assertRaises(DeadLetterLimit, count.admit, TP, ERROR)

    def test_a_handled_message_resets_the_count_of_consecutive_dead_letters(self):
        count = self.count(max_consecutive=1)
        for _ in range(5):
            count.admit(TP, ERROR)
            count.passed(TP, 1)

    def test_consecutive_dead_letters_are_counted_per_partition(self):
        count = self.count(max_consecutive=1)
        count.admit(TP, ERROR)
        count.admit(TopicPartition("t", 2), ERROR)

    def test_the_ratio_refers_to_the_last_window_of_messages(self):
        count = self.count(max_ratio=0.2, window=10)
        for _ in range(6):
            count.admit(TP, ERROR)
            count.passed(TP, 4)
        count.admit(TP, ERROR)
        self.assertRaises(DeadLetterLimit, count.admit, TP, ERROR)

    def test_errors_before_the_limit_are_admitted(self):
        errors = dict.fromkeys((1, 2, 3), ERROR)
        admitted, limit = self.count(max_consecutive=2).admit_some(TP, errors, 0)
        self.assertEqual([1, 2], admitted)
        self.assertIs(ERROR, limit.__cause__)

    def test_limits_out_of_bounds_are_refused(self):
        for limits in ({"max_consecutive": -1}, {"max_ratio": 1.5}, {"window": 0}):
            self.assertRaises(ConfigurationError, dl.DeadLetters, **limits)


class ProcessingTest(ProcessorCase):
    def test_poison_is_dead_lettered_immediately_and_other_messages_are_handled(self):
        self.fill(b"1", b"bad", b"3")
        calls = []

        def handler(part):
            calls.append(list(part.values))
            if b"bad" in part.values:
                raise Poison("bad reading", [1])

        self.start(handler)
        self.until(lambda: self.committed() == 3)
        self.assertEqual([[b"1", b"bad", b"3"], [b"1", b"3"]], calls)
        (letter,) = self.broker.records("in.dlq")
        self.assertEqual(b"bad reading", dict(letter.headers)[dl.ERROR_TEXT])
        self.assertEqual(b"test-group/in/0/1", letter.message_id)

    def test_poison_indices_outside_the_batch_are_a_failure_of_the_handler(self):
        self.fill(b"1")

        def handler(part):
            raise Poison("which?", [5])

        self.start(handler, retry=ONCE)
        self.until(lambda: self.committed() == 1)
        self.assertEqual([b"1"], self.values("in.dlq"))

    # Rule 17
    def test_nothing_is_committed_before_its_dead_letter_is_acknowledged(self):
        self.fill(b"bad")
        self.broker.inject("produce", Delay(5.0), topic="in.dlq")
        self.start(refuse(b"bad"), retry=ONCE)
        self.pass_time(4, step=0.05)
        self.assertEqual(0, self.committed())
        self.until(lambda: self.committed() == 1)

    def test_a_temporarily_refused_dead_letter_is_sent_until_it_is_acknowledged(self):
        self.fill(b"bad")
        self.broker.inject("produce", Fail("NOT_ENOUGH_REPLICAS"), count=10, topic="in.dlq")
        self.start(refuse(b"bad"), retry=ONCE)
        self.until(lambda: self.committed() == 1)
        self.assertEqual([b"bad"], self.values("in.dlq"))

    def test_a_missing_permission_to_write_dead_letters_ends_the_run(self):
        self.fill(b"bad")
        self.broker.inject("produce", Fail("TOPIC_AUTHORIZATION_FAILED"), count=None, topic="in.dlq")
        self.assertIsInstance(self.failure(self.start(refuse(b"bad"), retry=ONCE)), AuthorizationError)
        self.assertEqual(0, self.committed())

    # Rule 17
    def test_the_limit_ends_the_run_and_the_message_that_crosses_it_stays(self):
        self.fill(b"1", b"bad1", b"bad2", b"bad3", b"5")
        handler = refuse(b"bad1", b"bad2", b"bad3")
        running = self.start(handler, retry=ONCE, dead_letters=dl.DeadLetters(max_consecutive=2))
        self.assertIsInstance(self.failure(running), DeadLetterLimit)
        self.assertEqual([b"bad1", b"bad2"], self.values("in.dlq"))
        self.assertEqual(3, self.committed())

    def test_a_limit_crossed_within_a_poisoned_batch_also_ends_the_run(self):
        self.fill(b"1", b"bad1", b"bad2", b"4")

        def handler(part):
            indices = [index for index, value in enumerate(part.values) if value.startswith(b"bad")]
            if indices:
                raise Poison("bad", indices)

        running = self.start(handler, dead_letters=dl.DeadLetters(max_consecutive=1))
        self.assertIsInstance(self.failure(running), DeadLetterLimit)
        self.assertEqual([b"bad1"], self.values("in.dlq"))
        self.assertEqual(0, self.committed())

    def reject_one_by_one(self, part):
        for index, value in enumerate(part.values):
            if value.startswith(b"bad"):
                raise Poison("bad", [index])

    def test_messages_that_a_handler_rejects_one_by_one_are_consecutive(self):
        self.fill(b"1", b"bad1", b"bad2", b"bad3", b"5")
        running = self.start(self.reject_one_by_one, dead_letters=dl.DeadLetters(max_consecutive=2))
        self.assertIsInstance(self.failure(running), DeadLetterLimit)
        self.assertEqual([b"bad1", b"bad2"], self.values("in.dlq"))

    def test_the_ratio_counts_each_message_once_if_a_handler_rejects_one_by_one(self):
        self.fill(b"bad1", b"2", b"3", b"4", b"bad5", b"6", b"7", b"8", b"bad9", b"bad10")
        running = self.start(self.reject_one_by_one, dead_letters=dl.DeadLetters(max_ratio=0.25, window=4))
        self.assertIsInstance(self.failure(running), DeadLetterLimit)
        self.assertEqual([b"bad1", b"bad5", b"bad9"], self.values("in.dlq"))

    def test_a_message_that_does_not_fit_with_its_origin_is_cut(self):
        self.broker.create_topic("small.dlq", 1, max_message_bytes=2000)
        value = b"".join(hashlib.sha256(b"%d" % number).digest() for number in range(60))
        self.fill(value)
        self.start(refuse(value), retry=ONCE, dead_letters=dl.DeadLetters(topic="small.dlq"))
        self.until(lambda: self.committed() == 1)
        (letter,) = self.broker.records("small.dlq")
        self.assertTrue(value.startswith(letter.value or b"?"))
        self.assertGreater(len(letter.value or b""), 500)
        self.assertEqual(b"%d" % len(value), dict(letter.headers)[dl.VALUE_CUT_FROM])
        self.assertEqual(b"0", dict(letter.headers)[dl.ORIGIN_OFFSET])

    def test_a_message_with_large_headers_of_dead_letters_becomes_a_dead_letter(self):
        self.broker.create_topic("small.dlq", 1, max_message_bytes=3000)
        large = b"x" * 2900
        messages = [
            Record(b"bad", partition=0, message_id=large),
            Record(b"bad", partition=0, headers=((dl.HEADER_PREFIX + "other", large),)),
            Record(b"bad", partition=0, headers=((dl.ORIGIN_TOPIC, large), (dl.ERROR_TEXT, large))),
            Record(large, partition=0, headers=((dl.KEY_AND_HEADERS_DROPPED, b"1"),)),
        ]
        self.fill(*messages)
        self.start(refuse(b"bad", large), retry=ONCE, dead_letters=dl.DeadLetters(topic="small.dlq"))
        self.until(lambda: self.committed() == len(messages))
        letters = [dict(letter.headers) for letter in self.broker.records("small.dlq")]
        self.assertEqual([b"0", b"1", b"2", b"3"], [letter[dl.ORIGIN_OFFSET] for letter in letters])
        self.assertEqual({b"in"}, {letter[dl.ORIGIN_TOPIC] for letter in letters})
        self.assertEqual(large[:1000], letters[0][dl.ORIGIN_MESSAGE_ID])

    def test_the_consumers_setting_names_the_topic(self):
        self.broker.create_topic("morgue", 1)
        self.fill(b"bad")
        self.start(refuse(b"bad"), retry=ONCE, settings={"dead_letter_topic": "morgue"})
        self.until(lambda: self.committed() == 1)
        self.assertEqual([b"bad"], self.values("morgue"))
