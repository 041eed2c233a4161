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

# Matching each pattern against its text with Python's engine would take longer than the age of the universe.
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
    def test_matching_any_text_takes_little_time(self):
        for text, value in SLOW:
            began = time.process_time()
            self.assertFalse(Pattern(text).is_in(value), text)
            self.assertLess(time.process_time() - began, 5, text)

    def test_a_pattern_that_re2_does_not_support_is_refused_with_the_unsupported_part(self):
        for text in REFUSED:
            error = self.assertRaises(ValueError, Pattern, text)
            for part in (repr(text), "RE2", "backreferences"):
                self.assertIn(part, str(error), text)
        self.assertIn("(?=", str(self.assertRaises(ValueError, Pattern, "a(?=b)")))
        self.assertIn("not Unicode", str(self.assertRaises(ValueError, Pattern, "\ud800")))

    def test_common_syntax_matches_like_pythons_engine(self):
        for text in ("^/mnt", "eth|lo$", r"\.example\.", "(?i)NODE-[0-9]{1,3}$", "é.é", "[^a-z]", "^$", "(?P<x>a)b"):
            for value in ("/mnt/a", "eth0", "xlo", "a.example.b", "node-17", "éüé", "é", "", "ab", "a\nb"):
                self.assertEqual(re.search(text, value) is not None, Pattern(text).is_in(value), (text, value))

    @given(st.text(alphabet=st.characters(), max_size=20))
    def test_any_text_can_be_matched(self, value):
        self.assertEqual("b" in value, Pattern("b").is_in(value))
        self.assertEqual("bbbx" in value, Pattern("b{3}x").is_in(value + "\ud800"))

    def test_a_pattern_is_pickled_by_its_text(self):
        pattern = pickle.loads(pickle.dumps(Pattern("^a")))
        self.assertEqual((Pattern("^a"), True), (pattern, pattern.is_in("ab")))

    def test_without_re2_the_error_names_the_extra_to_install(self):
        with mock.patch.dict(sys.modules, {"re2": None}):
            error = self.assertRaises(ConfigurationError, Pattern, "a")
        self.assertIn("monasca-common[spark]", str(error))
