# SPDX-License-Identifier: Apache-2.0
import pickle
import re
import sys
import time
from unittest import mock

from hypothesis import given
from hypothesis import strategies as st
from oslotest import base

from monasca_common.kafka.errors import ConfigurationError
from monasca_common.pipeline.patterns import Pattern

# Each takes Python's engine longer than the universe is old on the text beside it.
SLOW = [
    (r"^(a+)+$", "a" * 254 + "!"),
    (r"^(([a-z])+.)+[A-Z]([a-z])+$", "a" * 255),
    (r"(x+x+)+y", "x" * 100_000),
    (r"^(a|aa)+$", "a" * 10_000 + "b"),
    (r"(.*a){20}", "a" * 19 + "b" * 10_000),
]
REFUSED = [
    r"(a)\1",
    r"(?P<n>a)(?P=n)",
    "(?=a)",
    "(?!a)",
    "(?<=a)b",
    "(?<!a)b",
    "a++",
    "(?>a)",
    "a{1001}",
    r"a\Z",
    "(",
    "[",
]


class PatternTest(base.BaseTestCase):
    def test_no_text_takes_long(self):
        for text, value in SLOW:
            began = time.process_time()
            self.assertFalse(Pattern(text).is_in(value), text)
            self.assertLess(time.process_time() - began, 5, text)

    def test_what_cannot_be_bounded_is_refused_with_its_place(self):
        for text in REFUSED:
            error = self.assertRaises(ValueError, Pattern, text)
            for part in (repr(text), "RE2", "no backreferences"):
                self.assertIn(part, str(error), text)
        self.assertIn("(?=", str(self.assertRaises(ValueError, Pattern, "a(?=b)")))
        self.assertIn("not Unicode", str(self.assertRaises(ValueError, Pattern, "\ud800")))

    def test_it_matches_as_pythons_where_both_have_the_syntax(self):
        for text in ("^/mnt", "eth|lo$", r"\.example\.", "(?i)NODE-[0-9]{1,3}$", "é.é", "[^a-z]", "^$", "(?P<x>a)b"):
            for value in ("/mnt/a", "eth0", "xlo", "a.example.b", "node-17", "éüé", "é", "", "ab", "a\nb"):
                self.assertEqual(re.search(text, value) is not None, Pattern(text).is_in(value), (text, value))

    @given(st.text(alphabet=st.characters(), max_size=20))
    def test_every_text_has_an_answer(self, value):
        self.assertEqual("b" in value, Pattern("b").is_in(value))
        self.assertEqual("bbbx" in value, Pattern("b{3}x").is_in(value + "\ud800"))

    def test_executors_get_it_by_its_text(self):
        pattern = pickle.loads(pickle.dumps(Pattern("^a")))
        self.assertEqual((Pattern("^a"), True), (pattern, pattern.is_in("ab")))

    def test_an_installation_without_re2_is_told_what_to_install(self):
        with mock.patch.dict(sys.modules, {"re2": None}):
            error = self.assertRaises(ConfigurationError, Pattern, "a")
        self.assertIn("monasca-common[spark]", str(error))
