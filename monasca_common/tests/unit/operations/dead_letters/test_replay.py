# SPDX-License-Identifier: Apache-2.0
"""Every replay ends, and each message is replayed unchanged."""

from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fixtures
from oslo_config import cfg
from oslotest import base

from monasca_common.kafka import (
    ConsumerError,
    DeadLetters,
    KafkaConsumer,
    KafkaProducer,
    Message,
    MessagingError,
    Poison,
    Processor,
    Record,
    TopicPartition,
    UndeliveredError,
    dead_letters,
)
from monasca_common.kafka import dead_letters as headers_of
from monasca_common.kafka.processor.dead_letters import dead_letter
from monasca_common.kafka.producer import serving
from monasca_common.kafka.testing import MemoryKafka
from monasca_common.kafka.transport.memory import Fail, VirtualClock
from monasca_common.operations.dead_letters import (
    DeadLetter,
    DeadLetterReplay,
    DeadLetterTopic,
    ReplayLog,
    SentMessages,
    replay,
)
from monasca_common.tests.unit.kafka.transactional_memory import (
    TransactionalMemoryConsumer,
    TransactionalMemoryProducer,
)

TOPIC, OTHER, LETTERS = "readings", "others", "readings.dlq"
ONE = TopicPartition("metrics.dlq", 1)
LETTER = ((dead_letters.ORIGIN_TOPIC, b"metrics"),)


class ReplayCase(base.BaseTestCase):
    clock = None

    def setUp(self):
        super().setUp()
        self.kafka = self.useFixture(MemoryKafka(clock=self.clock))
        for topic in (TOPIC, OTHER, LETTERS):
            self.kafka.broker.create_topic(topic, 1)
        self.producer = self.kafka.producer()

    def write(self, topic, *records):
        self.producer.publish(topic, records).raise_for_undelivered()

    def die(self, *values, topic=TOPIC, headers=()):
        """Create dead letters of messages with these values."""
        self.write(topic, *(Record(value, headers=headers) for value in values))
        with self.kafka.consumer(topic, f"dies-{topic}-{values}") as consumer:
            letters = [dead_letter(each, ValueError("bad"), "readers", 1, 0) for each in consumer.poll()]
            self.write(LETTERS, *letters[-len(values) :])

    def replay(self, **arguments):
        """Return the replayed and the pending values of one run. ``self.refused``: the values that their topics
        refused."""
        with self.kafka.consumer(LETTERS, "replay") as consumer:
            letters = list(DeadLetterReplay(consumer, **arguments).send(self.producer))
        self.refused = [letter.message.value for letter in letters if letter.refusal]
        return sum(letter.is_replayable for letter in letters), sum(bool(letter.obstacle) for letter in letters)

    def committed(self):
        return self.kafka.broker.committed("replay").get(TopicPartition(LETTERS, 0))

    def values(self, topic):
        return [record.value for record in self.kafka.broker.records(topic)]


class BoundTest(ReplayCase):
    def test_new_dead_letters_are_left_for_the_next_run(self):
        def refuse(message):
            raise Poison("still broken")

        reader = self.kafka.consumer(TOPIC, "readers")
        processor = Processor(
            reader, refuse, per_message=True, producer=self.producer, dead_letters=DeadLetters(topic=LETTERS)
        )
        with ThreadPoolExecutor() as pool:
            running = pool.submit(processor.run)
            try:
                self.write(TOPIC, b"one", b"two")
                while len(self.kafka.broker.records(LETTERS)) < 2:
                    self.assertFalse(running.done())

                self.assertEqual((2, 0), self.replay())

                while len(self.kafka.broker.records(LETTERS)) < 4:
                    self.assertFalse(running.done())
                self.assertEqual((2, 0), self.replay())
                while len(self.kafka.broker.records(LETTERS)) < 6:
                    self.assertFalse(running.done())
                self.assertEqual((0, 2), self.replay(max_replays=2))
            finally:
                processor.stop()
        self.assertEqual(6, len(self.kafka.broker.records(TOPIC)))

    def test_dead_letters_beyond_a_limit_are_left_for_the_next_run(self):
        self.die(b"one", b"two", b"three")
        self.assertEqual((2, 0), self.replay(limit=2))
        self.assertEqual(2, self.committed())
        self.assertEqual((1, 0), self.replay(limit=2))
        self.assertEqual([b"one", b"two", b"three"] * 2, self.values(TOPIC))

    def test_offsets_without_a_message_do_not_delay_the_end(self):
        self.die(b"one")
        self.kafka.broker.skip_offsets(LETTERS, 0, 3)
        self.assertEqual((1, 0), self.replay())
        self.assertEqual((0, 0), self.replay())

    def test_deleted_dead_letters_do_not_block_others(self):
        self.die(b"one")
        self.assertEqual((1, 0), self.replay())
        self.die(b"two", b"three")
        self.kafka.broker.delete_records(LETTERS, 0, 2)
        self.assertEqual((1, 0), self.replay())
        self.assertEqual((b"three", 3), (self.values(TOPIC)[-1], self.committed()))

    def test_a_run_without_dead_letters_ends(self):
        self.assertEqual((0, 0), self.replay())

    def test_a_dry_run_sends_and_commits_nothing(self):
        self.die(b"one", b"two")
        with self.kafka.consumer(LETTERS, "replay", partitions=[TopicPartition(LETTERS, 0)]) as consumer:
            (letter,) = DeadLetterReplay(consumer, limit=1).dead_letters()
        self.assertEqual(
            (TOPIC, f"{TOPIC}/0/0", "readers", 1, 0, ""),
            (
                letter.origin_topic,
                letter.origin,
                letter.group,
                letter.attempts,
                letter.replays,
                letter.obstacle,
            ),
        )
        self.assertEqual("ValueError: bad", letter.error)
        self.assertIn(self.committed(), (None, 0))
        self.assertEqual(2, len(self.values(TOPIC)))


class ChoiceTest(ReplayCase):
    def replay_of(self, *values, **arguments):
        return self.replay(chosen=lambda letter: letter.message.value in values, **arguments)

    def pending(self):
        with self.kafka.consumer(LETTERS, "replay", partitions=[TopicPartition(LETTERS, 0)]) as consumer:
            return [letter.message.value for letter in DeadLetterReplay(consumer).dead_letters()]

    def setUp(self):
        super().setUp()
        self.die(b"one", b"two", b"three", b"four")

    def test_selected_dead_letters_are_replayed_and_others_stay_pending(self):
        self.assertEqual((2, 0), self.replay_of(b"one", b"three"))
        self.assertEqual(1, self.committed())
        self.assertEqual([b"two", b"four"], self.pending())
        self.assertEqual((1, 0), self.replay_of(b"four"))
        self.assertEqual([b"two"], self.pending())
        self.assertEqual((1, 0), self.replay())
        self.assertEqual([b"one", b"three", b"four", b"two"], self.values(TOPIC)[4:])
        self.assertEqual(len(self.kafka.broker.records(LETTERS)), self.committed())

    def test_only_pending_dead_letters_are_counted(self):
        self.replay_of(b"two", b"four")
        self.kafka.broker.skip_offsets(LETTERS, 0, 3)
        with self.kafka.consumer(LETTERS, "replay", partitions=[TopicPartition(LETTERS, 0)]) as consumer:
            replay = DeadLetterReplay(consumer)
            self.assertEqual((2, 2), (replay.pending_count(), len(list(replay.dead_letters()))))
        self.replay()
        self.kafka.broker.skip_offsets(LETTERS, 0, 3)
        with self.kafka.consumer(LETTERS, "replay", partitions=[TopicPartition(LETTERS, 0)]) as consumer:
            self.assertEqual(0, DeadLetterReplay(consumer).pending_count())

    def test_a_repeated_choice_sends_nothing_twice(self):
        self.assertEqual([(1, 0), (0, 0)], [self.replay_of(b"three") for _ in "ab"])

    def test_the_limit_counts_chosen_dead_letters(self):
        self.assertEqual((1, 0), self.replay_of(b"two", b"four", limit=1))
        self.assertEqual([b"one", b"three", b"four"], self.pending())

    def test_each_group_has_its_own_notes(self):
        self.replay_of(b"two")
        with self.kafka.consumer(LETTERS, "another", partitions=[TopicPartition(LETTERS, 0)]) as consumer:
            self.assertEqual(4, len(list(DeadLetterReplay(consumer).dead_letters())))

    def test_foreign_records_with_the_key_of_a_note_are_ignored(self):
        for value in (b"x", b"7", b"[[1]]", b"[[0, 1e999]]", b"[" * 100_000, None):
            self.write(LETTERS, Record(value, key=b"dead-letter-note/replay/0/0"))
        self.assertEqual((4, 0), self.replay())

    def test_a_dead_letter_with_the_key_of_a_note_is_a_dead_letter(self):
        self.write(OTHER, Record(b"[[0, 400]]", key=b"dead-letter-note/replay/0/0"))
        with self.kafka.consumer(OTHER, "dies") as consumer:
            self.write(LETTERS, *(dead_letter(each, ValueError("bad"), "dies", 1, 0) for each in consumer.poll()))
        self.assertEqual((5, 0), self.replay())
        self.assertEqual((8, 2), (len(self.values(TOPIC)), len(self.values(OTHER))))

    def test_an_undelivered_message_is_not_in_a_note(self):
        self.kafka.broker.inject("produce", Fail("NOT_ENOUGH_REPLICAS"), topic=TOPIC, nth=2)
        self.assertRaises(UndeliveredError, self.replay_of, b"two", b"four")
        self.assertEqual([b"one", b"three", b"four"], self.pending())

    def test_a_message_delivered_after_an_undelivered_one_is_in_a_note(self):
        self.kafka.broker.inject("produce", Fail("NOT_ENOUGH_REPLICAS"), topic=TOPIC, nth=1)
        self.assertRaises(UndeliveredError, self.replay_of, b"two", b"four")
        self.assertEqual([b"one", b"two", b"three"], self.pending())


class RefusalTest(ReplayCase):
    def setUp(self):
        super().setUp()
        self.die(b"one")
        self.die(b"two", topic=OTHER)
        self.die(b"three")

    def test_a_refused_dead_letter_stays_pending_and_later_ones_are_replayed(self):
        self.kafka.broker.inject("produce", Fail("INVALID_RECORD"), topic=OTHER, count=None)
        self.assertEqual((2, 0), self.replay())
        self.assertEqual(([b"two"], 1), (self.refused, self.committed()))
        self.assertEqual((0, 0), self.replay())
        self.assertEqual([b"two"], self.refused)
        self.kafka.broker.clear_faults()
        self.assertEqual((1, 0), self.replay())
        self.assertEqual(([b"one", b"three"] * 2, [b"two"] * 2), (self.values(TOPIC), self.values(OTHER)))

    def test_dead_letters_of_a_deleted_topic_stay_pending_and_others_are_replayed(self):
        self.kafka.broker.delete_topic(OTHER)
        with self.kafka.consumer(LETTERS, "replay") as consumer:
            reasons = [letter.refusal for letter in DeadLetterReplay(consumer).dead_letters()]
        self.assertEqual(["", f"there is no topic {OTHER}", ""], reasons)
        self.assertEqual((2, 0), self.replay())
        self.assertEqual([b"two"], self.refused)
        self.kafka.broker.create_topic(OTHER, 1)
        self.assertEqual((1, 0), self.replay())
        self.assertEqual([b"two"], self.values(OTHER))

    def test_a_dead_letter_with_an_invalid_topic_stays_pending(self):
        self.write(LETTERS, Record(b"x", headers=((headers_of.ORIGIN_TOPIC, b"a b"),)))
        self.assertEqual((3, 0), self.replay())
        self.assertEqual([b"x"], self.refused)

    def test_a_refusal_within_a_transaction_is_known_before_listeners_are_called(self):
        self.useFixture(fixtures.MonkeyPatch(f"{serving.__name__}.Serving._call_listeners", lambda _: None))
        self.kafka.broker.inject("produce", Fail("INVALID_RECORD"), topic=OTHER, count=None)
        settings = self.kafka.producer_settings(transactional_id="one")
        self.producer = KafkaProducer(
            settings,
            lambda batch_bytes, on_error: TransactionalMemoryProducer(
                self.kafka.producer_settings(), batch_bytes=batch_bytes, on_error=on_error
            ),
        )
        self.addCleanup(self.producer.close, 1.0)
        reading = self.kafka.consumer_settings(LETTERS, "replay")
        with KafkaConsumer(reading, TransactionalMemoryConsumer(reading)) as consumer:
            letters = list(DeadLetterReplay(consumer).send(self.producer))

        self.assertEqual([True, False, True], [letter.is_replayable for letter in letters])
        self.assertIn("refused by its topic", letters[1].refusal)

    def test_the_limit_does_not_count_refused_dead_letters(self):
        self.kafka.broker.inject("produce", Fail("INVALID_RECORD"), topic=TOPIC, nth=1)
        self.assertEqual((1, 0), self.replay(limit=1))
        self.assertEqual(([b"one"], [b"two"] * 2), (self.refused, self.values(OTHER)))


class RepeatTest(ReplayCase):
    def test_a_message_in_several_dead_letters_is_replayed_once(self):
        self.die(b"one")
        (letter,) = self.kafka.broker.records(LETTERS)
        again = tuple((name, value) for name, value in letter.headers if name != "message-id")
        self.write(LETTERS, Record(letter.value, headers=again, message_id=b"of another group"))
        self.assertEqual((1, 1), self.replay())
        self.assertEqual([b"one", b"one"], self.values(TOPIC))
        self.assertEqual((0, 0), self.replay())


class RateTest(ReplayCase):
    def test_the_rate_bounds_dead_letters_per_second(self):
        waits = []

        class NoWait:
            def wait(self, clock, seconds):
                waits.append(seconds)

        self.patch(replay, "Signal", NoWait)
        self.die(*(b"%d" % number for number in range(10)))
        self.assertEqual((10, 0), self.replay(rate=4))
        self.assertEqual(3, len(waits))  # after four, eight and ten dead letters
        for least, wait in zip((0.0, 1.0, 1.5), waits, strict=True):
            self.assertTrue(least < wait <= least + 1.0, waits)


class PatienceTest(ReplayCase):
    def setUp(self):
        self.clock = VirtualClock()
        super().setUp()

    def test_a_silent_broker_ends_the_run_with_the_missing_partition(self):
        self.die(b"one")
        consumer = self.kafka.consumer(LETTERS, "replay")
        original = consumer.poll

        def poll(**arguments):
            self.clock.advance(1.0)
            return original(timeout=0.0)

        consumer.poll = poll
        self.patch(replay, "_PATIENCE_SECONDS", 5.0)
        run = DeadLetterReplay(consumer)
        self.assertEqual(1, run.pending_count())
        consumer.pause(consumer.assignment())
        error = self.assertRaises(MessagingError, list, run.send(self.producer))
        self.assertIn(f"{LETTERS}/0 has more", str(error))


class DeadLetterTest(ReplayCase):
    def test_a_replayed_message_is_unchanged_except_for_its_replay_headers(self):
        self.die(b"one", headers=(("room", b"hall"),))

        self.assertEqual((1, 0), self.replay())

        first, again = self.kafka.broker.records(TOPIC)
        self.assertEqual(b"one", again.value)
        headers = dict(again.headers)
        own = {"dead-letter-replays": b"1", "dead-letter-first-origin": b"readings/0/0"}
        self.assertEqual(dict(first.headers) | own, headers)

    def test_a_message_that_fails_again_keeps_its_first_origin_and_failure_time(self):
        self.write(TOPIC, Record(b"one"))
        with self.kafka.consumer(TOPIC, "readers") as consumer:
            for failed_ms, offset in ((1000, 0), (2000, 1), (3000, 2)):
                (message,) = consumer.poll()
                self.assertEqual(offset, message.offset)
                self.write(LETTERS, dead_letter(message, ValueError("bad"), "readers", 1, failed_ms))
                self.assertEqual((1, 0), self.replay())
        letters = [DeadLetter.of(each) for each in self.kafka.broker.records(LETTERS)]
        self.assertEqual([f"{TOPIC}/0/{offset}" for offset in range(3)], [each.origin for each in letters])
        self.assertEqual([f"{TOPIC}/0/0"] * 3, [each.first_origin for each in letters])
        self.assertEqual([1000] * 3, [each.first_failure_ms for each in letters])
        self.assertEqual([0, 1, 2], [each.replays for each in letters])
        self.assertEqual(b"3", dict(self.kafka.broker.records(TOPIC)[-1].headers)["dead-letter-replays"])

    def test_a_dead_letter_without_the_original_id_keeps_its_own(self):
        rejected = Record(b"one", headers=((headers_of.ORIGIN_TOPIC, TOPIC.encode()),), message_id=b"own")
        self.write(LETTERS, rejected)
        self.assertEqual((1, 0), self.replay())
        self.assertEqual([b"own"], [record.message_id for record in self.kafka.broker.records(TOPIC)])

    def test_foreign_and_truncated_records_stay_and_later_ones_are_replayed(self):
        self.write(LETTERS, Record(b"somebody's"))
        cut = ((headers_of.ORIGIN_TOPIC, TOPIC.encode()), (headers_of.VALUE_CUT_FROM, b"9"))
        self.write(LETTERS, Record(b"cut", headers=cut))
        self.die(b"one")
        self.assertEqual((1, 2), self.replay())
        self.assertEqual([b"one", b"one"], self.values(TOPIC))


class ProgressTest(ReplayCase):
    def test_replayed_messages_are_committed_and_not_sent_again(self):
        self.die(b"one", b"two")

        self.assertEqual((2, 0), self.replay())

        self.assertEqual(2, self.committed())
        self.assertEqual((0, 0), self.replay())

    def test_a_refused_commit_ends_the_run_with_an_error_and_the_next_run_sends_again(self):
        self.die(b"one", b"two")
        # the first commit stores the start offset
        self.kafka.broker.inject("commit", Fail("GROUP_AUTHORIZATION_FAILED"), nth=2)

        refused = self.assertRaises(ConsumerError, self.replay)

        self.assertIn(f"{LETTERS}/0", str(refused))
        self.assertIn("the next run sends", str(refused))
        self.assertEqual("GROUP_AUTHORIZATION_FAILED", refused.__cause__.name)
        self.assertEqual((2, 0), self.replay())
        self.assertEqual([b"one", b"two"] * 3, self.values(TOPIC))

    def test_dead_letters_of_several_topics_keep_their_order(self):
        self.die(b"one")
        self.die(b"two", topic=OTHER)
        self.die(b"three")
        self.assertEqual((3, 0), self.replay())
        self.assertEqual([b"one", b"three"], self.values(TOPIC)[-2:])
        self.assertEqual([b"two", b"two"], self.values(OTHER))

    def test_undelivered_messages_are_not_committed_and_earlier_ones_are(self):
        self.die(b"one")
        self.die(b"two", topic=OTHER)
        self.kafka.broker.inject("produce", Fail("NOT_ENOUGH_REPLICAS"), topic=OTHER, count=None)

        self.assertRaises(UndeliveredError, self.replay)

        self.assertEqual(1, self.committed())
        self.kafka.broker.clear_faults()
        self.assertEqual((1, 0), self.replay())
        self.assertEqual(2, self.committed())

    def test_a_closed_iterator_leaves_the_rest(self):
        self.die(b"one")
        self.die(b"two", topic=OTHER)
        with self.kafka.consumer(LETTERS, "replay") as consumer:
            letters = DeadLetterReplay(consumer).send(self.producer)
            next(letters)
            letters.close()
        self.assertEqual(1, self.committed())


class SettingsTest(base.BaseTestCase):
    def test_a_replay_opens_the_client_with_transactions(self):
        file = Path(self.useFixture(fixtures.TempDir()).path, "service.conf")
        for driver in ("kafka", "native", "confluent"):
            file.write_text(f"[kafka]\nbootstrap_servers = kafka:9092\ndriver = {driver}\n")
            conf = cfg.ConfigOpts()
            conf([], default_config_files=[str(file)])
            topic = DeadLetterTopic.of(conf, LETTERS, "kafka", "replay", defaultdict(SentMessages))
            self.assertEqual(driver, topic.consumer.connection.driver)
            producer = topic.producer
            used = producer.connection.driver, producer.transactional_id
            self.assertEqual(("confluent", f"replay/{LETTERS}"), used)


class NotesTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.notes = ReplayLog("g")

    def letters(self, *offsets):
        for offset in offsets:
            self.notes.read(Message(*ONE, offset, 0, None, b"x", LETTER))

    def note(self, offset, *numbers, of=None):
        """Return a note at ``offset`` that lists these dead letters. ``of``: the group that wrote it, by default the
        tested group."""
        record = ReplayLog(of or "g").note(ONE, numbers)
        self.notes.read(Message(*ONE, offset, 0, record.key, record.value, ()))

    def handled(self):
        return [offset for offset in range(100) if self.notes.is_handled(ONE, offset)]

    def test_dead_letters_are_pending_until_a_note_of_the_group_lists_them(self):
        self.letters(4, 5, 6, 9)
        for offset, group in ((10, "another"), (11, "g/1")):
            self.note(offset, 5, 6, 9, of=group)
        self.assertEqual((4, []), (self.notes.pending_count(), self.handled()))
        self.note(12, 5, 6, 9)
        self.assertEqual((1, [5, 6, 9]), (self.notes.pending_count(), self.handled()))

    def test_offsets_without_a_message_are_not_dead_letters(self):
        self.letters(4, 90)
        self.note(91, 4, 5, 6)
        self.note(99, 90)
        self.assertEqual((0, [4, 90]), (self.notes.pending_count(), self.handled()))

    def test_a_note_affects_only_earlier_offsets_that_were_read(self):
        self.letters(50, 51)
        self.note(52, 1, 2, 3)
        self.note(53, 53, 54, 55)
        self.letters(54, 55)
        self.assertEqual((4, []), (self.notes.pending_count(), self.handled()))

    def test_an_offset_read_twice_counts_once(self):
        self.letters(4, 5, 4, 5)
        self.assertEqual(2, self.notes.pending_count())
