# SPDX-License-Identifier: Apache-2.0
"""Which messages are drawn, selected and shown: no broker is needed for that."""

import argparse
import itertools
import random

from oslotest import base

from monasca_common.cli import message_selection, message_view
from monasca_common.cli.topic_messages import chosen_offsets, drawn
from monasca_common.kafka import Message, TopicPartition

_FIRST, _SECOND = TopicPartition("metrics", 0), TopicPartition("metrics", 1)


def message(value=b"x", *, key=b"k", headers=(), time_ms=1000, offset=0):
    return Message("metrics", 0, offset, time_ms, key, value, tuple(headers))


def parsed(*arguments):
    parser = argparse.ArgumentParser()
    message_selection.add_arguments(parser)
    message_view.add_arguments(parser)
    return parser.parse_args(arguments)


class DrawingTest(base.BaseTestCase):
    def test_even_offsets_span_all_partitions(self):
        starts, ends = {_FIRST: 10, _SECOND: 0}, {_FIRST: 20, _SECOND: 10}
        self.assertEqual({_FIRST: [10, 15], _SECOND: [0, 5]}, chosen_offsets(starts, ends, 4, None))

    def test_no_more_are_drawn_than_there_are_and_none_of_an_empty_one(self):
        starts, ends = {_FIRST: 10, _SECOND: 5}, {_FIRST: 12, _SECOND: 5}
        self.assertEqual({_FIRST: [10, 11]}, chosen_offsets(starts, ends, 9, random.Random(1)))
        self.assertEqual({}, chosen_offsets({_SECOND: 5}, {_SECOND: 5}, 9, None))

    def test_of_a_stream_as_many_are_kept_as_were_asked_for(self):
        for total in (0, 1, 4, 5, 9, 10, 1000):
            for draw in (None, random.Random(7)):
                kept = drawn((message(offset=number) for number in range(total)), 5, draw)
                self.assertEqual(min(5, total), len({each.offset for each in kept}), (total, draw))

    def test_even_ones_of_a_stream_are_spread_over_all_of_it(self):
        offsets = [each.offset for each in drawn((message(offset=number) for number in range(1000)), 5, None)]
        self.assertEqual(sorted(offsets), offsets)
        self.assertTrue(all(100 <= later - one <= 300 for one, later in itertools.pairwise(offsets)), offsets)

    def test_each_is_as_likely_as_another(self):
        draw = random.Random(5)
        counts = [0] * 10
        for _ in range(2000):
            for each in drawn((message(offset=number) for number in range(10)), 3, draw):
                counts[each.offset] += 1
        self.assertTrue(all(500 < count < 700 for count in counts), counts)


class SelectionTest(base.BaseTestCase):
    def test_a_key_and_a_header_that_are_no_utf_8_are_found_as_the_shell_gives_them(self):
        one = message(key=b"\xff", headers=[("room", b"\xfe")])
        arguments = ("--key", "\udcff", "--header", "room=\udcfe")
        self.assertTrue(message_selection.is_meant(one, parsed(*arguments)))

    def test_each_condition_has_to_be_met(self):
        one = message(
            b'{"metric": {"name": "cpu", "tags": ["a", "b"], "n": 1.5, "on": true}}', headers=[("room", b"hall")]
        )
        for meant, arguments in (
            (True, ()),
            (True, ("--key", "k", "--header", "room=hall", "--header", "room")),
            (True, ("--field", "metric.name=cpu", "--field", "metric.tags.1=b", "--field", "metric.n=1.5")),
            (True, ("--field", "metric.on=true")),
            (True, ("--since", "1970-01-01T00:00:01Z", "--until", "1970-01-01T00:00:02Z")),
            (False, ("--key", "kk")),
            (False, ("--header", "room=kitchen")),
            (False, ("--field", "metric.name=cpu", "--field", "metric.name=disk")),
            (False, ("--field", "metric.tags.7=b")),
            (False, ("--field", "metric.tags.x=b")),
            (False, ("--field", "metric.name.deeper=x")),
            (False, ("--until", "1970-01-01T00:00:01Z")),
        ):
            self.assertEqual(meant, message_selection.is_meant(one, parsed(*arguments)), arguments)

    def test_what_is_no_json_has_no_field(self):
        for value in (None, b"", b"{", b"\xff", b"[" * 100_000):
            self.assertFalse(message_selection.is_meant(message(value), parsed("--field", "a=1")))


class ViewTest(base.BaseTestCase):
    def test_what_is_in_it_is_not_shown_unless_it_is_asked_for(self):
        one = message(b"confidential", key=b"whose", headers=[("room", b"hall")])
        told = f"{message_view.message_facts(one, parsed())} {list(message_view.message_lines(one, parsed()))}"
        for hidden in ("confidential", "whose", "hall"):
            self.assertNotIn(hidden, told)

    def test_headers_of_secrets_are_masked_and_long_values_cut(self):
        names = ("Authorization", "x-auth-token", "Cookie", "DB_PASSWORD", "client-secret", "api_key", "credentials")
        one = message("é".encode() * 300, headers=[*((name, b"hidden") for name in names), ("empty", None)])
        facts = message_view.message_facts(one, parsed("--payload", "--payload-characters", "3"))
        self.assertEqual([[name, "***"] for name in names], facts["headers"][:-1])
        self.assertEqual((["empty", None], "ééé… (600 B)"), (facts["headers"][-1], facts["value"]))

    def test_a_terminal_is_not_made_to_obey(self):
        (_, _, value) = message_view.message_lines(message(b"\x1b]0;title\x07"), parsed("--payload"))
        self.assertEqual("  value   \\x1b]0;title\\x07", value)
