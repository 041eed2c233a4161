# SPDX-License-Identifier: Apache-2.0
from hypothesis import example, given
from hypothesis import strategies as st
from oslotest import base

from monasca_common.models.errors import InvalidEnvelope, Violation, escaped_key
from monasca_common.models.limits import POSTED, REGION, STORED, TENANT, TextRule

# Characters with and without rules; small alphabets cause collisions.
TEXT = st.text(alphabet='ab_<>={},"\\;&() \0\n\u00e9\U0001f600', max_size=5) | st.sampled_from(["x" * 255, "x" * 256])


def faults(limits, name, dimensions):
    found = list(limits.name.faults(name))
    for key, value in dimensions.items():
        found += [*limits.key.faults(key), *limits.value.faults(value)]
    return found


class TestLimits(base.BaseTestCase):
    @given(TEXT, st.dictionaries(TEXT, TEXT, max_size=3))
    @example("a", {"k\0v": "w"})
    @example("a\0k\0v", {})
    @example("a\0k", {"v": "w"})
    def test_the_fast_and_the_slow_check_agree(self, name, dimensions):
        for limits in (POSTED, STORED):
            self.assertEqual(not faults(limits, name, dimensions), limits.keep(name, dimensions))

    def test_each_forbidden_character_is_refused_in_posts(self):
        for character in '<>={},"\\;&':
            with self.subTest(character):
                self.assertFalse(POSTED.keep(f"a{character}", {}))
                self.assertFalse(POSTED.keep("a", {f"k{character}": "v"}))
                self.assertFalse(POSTED.keep("a", {"k": f"v{character}"}))

    def test_parentheses_and_spaces_are_refused_in_names_only(self):
        for character in "() ":
            with self.subTest(character):
                self.assertFalse(POSTED.keep(f"a{character}b", {}))
                self.assertTrue(POSTED.keep("a", {f"k{character}l": f"v{character}w"}))

    def test_keys_may_not_start_with_an_underscore(self):
        self.assertFalse(POSTED.keep("a", {"_k": "v"}))
        self.assertTrue(POSTED.keep("_a", {"k_": "_v"}))

    def test_the_limit_of_255_counts_characters_not_bytes(self):
        self.assertTrue(POSTED.keep("\U0001f600" * 255, {"\u00e9" * 255: "\u6e29" * 255}))
        for name, key, value in (("x" * 256, "k", "v"), ("x", "k" * 256, "v"), ("x", "k", "v" * 256)):
            with self.subTest(name=len(name), key=len(key)):
                self.assertFalse(POSTED.keep(name, {key: value}))
                self.assertFalse(STORED.keep(name, {key: value}))

    def test_stored_texts_may_have_characters_that_posts_may_not(self):
        self.assertTrue(STORED.keep("cpu (all) <old>", {"_k": "a=b;c&d", "empty": ""}))

    def test_a_nul_is_refused_everywhere(self):
        for limits in (POSTED, STORED):
            for name, dimensions in (("a\0", {}), ("a", {"k\0": "v"}), ("a", {"k": "v\0"})):
                self.assertFalse(limits.keep(name, dimensions))

    def test_a_rule_reports_all_faults(self):
        self.assertEqual(3, len(list(TextRule(forbidden="<", prefix="_").faults("_<" + "x" * 255))))

    def test_a_tenant_is_limited_in_bytes(self):
        self.assertEqual([], list(TENANT.faults("\u00e9" * 127)))
        self.assertEqual(1, len(list(TENANT.faults("\u00e9" * 128))))
        self.assertEqual(1, len(list(TENANT.faults(""))))
        self.assertEqual([], list(REGION.faults("")))

    def test_a_place_contains_keys_as_ascii_of_bounded_length(self):
        self.assertEqual("host-name_1", escaped_key("host-name_1"))
        self.assertEqual(r"['a\x1b[31m']", escaped_key("a\x1b[31m"))
        self.assertLess(len(escaped_key("k" * 100000)), 80)

    def test_the_text_of_an_error_has_the_first_violation_and_the_number_of_others(self):
        violations = [Violation("a", "is required"), Violation("b", "is required"), Violation("", "is bad")]
        self.assertEqual("a is required (and 2 more)", str(InvalidEnvelope(violations)))
        self.assertEqual(tuple(violations), InvalidEnvelope(violations).violations)
