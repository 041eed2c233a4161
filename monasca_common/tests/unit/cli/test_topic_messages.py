# SPDX-License-Identifier: Apache-2.0
"""Drawing, selecting and showing messages, without a broker."""

import argparse

from oslotest import base

from monasca_common.cli import messages
from monasca_common.cli.topic_messages import draw_offsets
from monasca_common.kafka import Message, TopicPartition

_FIRST, _SECOND = TopicPartition("metrics", 0), TopicPartition("metrics", 1)


def message(value=b"x", *, key=b"k", headers=(), time_ms=1000):
    return Message("metrics", 0, 0, time_ms, key, value, tuple(headers))


def parsed(*arguments):
    parser = argparse.ArgumentParser()
    messages.add_selection(parser)
    messages.add_payload(parser)
    return parser.parse_args(arguments)


class DrawingTest(base.BaseTestCase):
    def test_offsets_are_drawn_from_all_partitions_without_repeats(self):
        starts, ends = {_FIRST: 10, _SECOND: 0}, {_FIRST: 20, _SECOND: 10}
        drawn = draw_offsets(starts, ends, 15)
        self.assertEqual(15, sum(len(set(offsets)) for offsets in drawn.values()))
        for partition, offsets in drawn.items():
            self.assertEqual(sorted(offsets), offsets)
            self.assertLessEqual(set(offsets), set(range(starts[partition], ends[partition])))

    def test_a_sample_is_never_larger_than_the_log(self):
        starts, ends = {_FIRST: 10, _SECOND: 5}, {_FIRST: 12, _SECOND: 5}
        self.assertEqual({_FIRST: [10, 11]}, draw_offsets(starts, ends, 9))
        self.assertEqual({}, draw_offsets({_SECOND: 5}, {_SECOND: 5}, 9))


class SelectionTest(base.BaseTestCase):
    def test_keys_and_headers_are_compared_as_bytes(self):
        one = message(key=b"\xff", headers=[("room", b"\xfe")])
        arguments = ("--key", "\udcff", "--header", "room=\udcfe")
        self.assertTrue(messages.is_selected(one, parsed(*arguments)))

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
            self.assertEqual(meant, messages.is_selected(one, parsed(*arguments)), arguments)

    def test_a_value_that_is_not_json_has_no_field(self):
        for value in (None, b"", b"{", b"\xff", b"[" * 100_000):
            self.assertFalse(messages.is_selected(message(value), parsed("--field", "a=1")))


class ViewTest(base.BaseTestCase):
    def test_payloads_are_shown_only_on_request(self):
        one = message(b"confidential", key=b"whose", headers=[("room", b"hall")])
        reported = f"{messages.message_facts(one, one, parsed())} {list(messages.message_lines(one, one, parsed()))}"
        for hidden in ("confidential", "whose", "hall"):
            self.assertNotIn(hidden, reported)

    def test_headers_with_secrets_are_masked_and_long_values_truncated(self):
        names = ("Authorization", "x-auth-token", "Cookie", "DB_PASSWORD", "client-secret", "api_key", "credentials")
        one = message("é".encode() * 300, headers=[*((name, b"hidden") for name in names), ("empty", None)])
        facts = messages.message_facts(one, one, parsed("--payload", "--payload-characters", "3"))
        self.assertEqual([[name, "***"] for name in names], facts["headers"][:-1])
        self.assertEqual((["empty", None], "ééé… (600 B)"), (facts["headers"][-1], facts["value"]))

    def test_control_characters_are_shown_as_text(self):
        title = message(b"\x1b]0;title\x07")
        (_, _, value) = messages.message_lines(title, title, parsed("--payload"))
        self.assertEqual("  value   \\x1b]0;title\\x07", value)
