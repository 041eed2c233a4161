# SPDX-License-Identifier: Apache-2.0
"""Test expressions of alarms: each rule, random expressions, and hostile expressions."""

import pickle
import re
from itertools import product
from pathlib import Path

from hypothesis import example, given
from hypothesis import strategies as st
from oslotest import base

from monasca_common.alarms import expression
from monasca_common.alarms.expression import FUNCTIONS, And, Expression, ExpressionError, Or, SubExpression, parse
from monasca_common.tests.unit.alarms.evaluator import Evaluator

CPU = SubExpression("avg", "cpu", (), False, "GT", 1.0, 60, 1)


def text_of(found):
    """Return a text that parses to an equal expression, unless the text exceeds the allowed length."""
    texts, waiting = {}, [found.root]  # keyed by the identity of a node; iterative, like `parse`
    while waiting:
        node = waiting[-1]
        if isinstance(node, SubExpression):
            texts[id(node)] = node.text
        elif missing := [each for each in node.operands if id(each) not in texts]:
            waiting += missing
            continue
        elif isinstance(node, Or):
            texts[id(node)] = " or ".join(texts[id(each)] for each in node.operands)
        else:
            parts = ((texts[id(each)], isinstance(each, Or)) for each in node.operands)
            texts[id(node)] = " and ".join(f"({text})" if is_or else text for text, is_or in parts)
        waiting.pop()
    return texts[id(found.root)]


def only(text):
    [found] = parse(text).sub_expressions
    return found


class ExpressionCase(base.BaseTestCase):
    def assert_refused(self, text, offset, *words):
        error = self.assertRaises(ExpressionError, parse, text)
        self.assertEqual(offset, error.offset, f"{text!r}: {error}")
        self.assertIn(f"at character {offset}: ", str(error))
        for word in words:
            self.assertIn(word, str(error))


class SubExpressionTest(ExpressionCase):
    def test_a_sub_expression_has_all_its_parts(self):
        self.assertEqual(
            SubExpression("count", "log.error", (("host", "a"), ("path", "/b")), True, "GTE", 10.5, 120, 3),
            only("count(log.error{path=/b, host=a}, deterministic, 120) >= 10.5 times 3"),
        )

    def test_omitted_parts_have_defaults(self):
        self.assertEqual(SubExpression("avg", "cpu", (), False, "GT", 1.0, 60, 1), only("avg(cpu)>1"))

    def test_functions_can_be_in_any_case(self):
        for function in ("min", "max", "sum", "count", "avg", "last"):
            self.assertEqual(function, only(f"{function}(a) > 1").function)
            self.assertEqual(function, only(f"{function.upper()} ( a ) > 1").function)

    def test_comparisons_can_be_signs_or_words_in_any_case(self):
        for name, sign in {"LT": "<", "LTE": "<=", "GT": ">", "GTE": ">="}.items():
            for written in (sign, f" {name} ", f" {name.lower()} ", f" {name.title()} "):
                self.assertEqual(name, only(f"avg(a){written}1").operator)

    def test_a_metric_without_a_function_uses_max_above_and_min_below_the_threshold(self):
        functions = [only(f"a{{k=v}} {operator} 1").function for operator in (">", ">=", "gt", "<", "<=", "lte")]

        self.assertEqual(["max"] * 3 + ["min"] * 3, functions)

    def test_empty_braces_mean_no_dimensions(self):
        self.assertEqual((), only("max(a{}) > 1").dimensions)
        self.assertEqual((), only("a { } > 1").dimensions)

    def test_only_spaces_around_keys_and_values_are_removed(self):
        found = only("max(a{ one key =  two\twords , k = https://a.b/c d}) > 1")

        self.assertEqual((("k", "https://a.b/c d"), ("one key", "two\twords")), found.dimensions)

    def test_thresholds_have_signs_points_and_exponents(self):
        for text, number in {
            "-1": -1,
            "+.5": 0.5,
            "7.": 7,
            "1e3": 1000,
            "-2.5E-2": -0.025,
            "-0": 0,
            "1e308": 1e308,
        }.items():
            self.assertEqual(number, only(f"a > {text}").threshold)
        self.assertEqual("0.0", repr(only("a > -0.0").threshold))

    def test_words_of_the_grammar_can_be_names(self):
        for word in ("and", "or", "times", "deterministic", "gt", "max", "60"):
            self.assertEqual(word, only(f"{word} > 1").metric_name)
            found = only(f"max({word}{{{word}={word}}}, deterministic, 60) > 1 times 2")
            self.assertEqual((word, ((word, word),), True), (found.metric_name, found.dimensions, found.deterministic))
        self.assertEqual(
            ["or", "or", "and"], [sub.metric_name for sub in parse("or>1 or or>1 and and>1").sub_expressions]
        )

    def test_names_can_contain_multibyte_characters(self):
        self.assertEqual(
            ("घोड़ा", (("千", "笑"),)), (only("घोड़ा{千=笑}>1").metric_name, only("घोड़ा{千=笑}>1").dimensions)
        )

    def test_values_of_dimensions_are_plain_strings(self):
        found = only("max(a{k=v}) > 1")

        self.assertEqual({str}, {type(text) for text in (found.function, found.metric_name, *found.dimensions[0])})


class TextTest(ExpressionCase):
    def test_reasons_show_sorted_dimensions_and_only_values_other_than_the_default(self):
        self.assertEqual(
            "count(log.error{hostname=a, path=/b}, deterministic, 120) > 10.0 times 3",
            only("count(log.error{path=/b,hostname=a},deterministic,120)>10 times 3").text,
        )
        self.assertEqual("max(a) <= 1.0", only("MAX(a{}, 60) LTE 1 times 1").text)

    def test_a_threshold_has_a_point_and_never_an_exponent(self):
        texts = {"1e16": "10000000000000000.0", "1e-7": "0.0000001", "-12": "-12.0", "0.1": "0.1"}
        for written, shown in texts.items():
            self.assertEqual(f"max(a) > {shown}", only(f"max(a) > {written}").text)

    def test_only_necessary_parentheses_are_printed(self):
        text = "max(a) > 1.0 and (max(b) > 1.0 or max(c) > 1.0) or max(d) > 1.0"

        self.assertEqual(text, text_of(parse(f"((({text})))")))
        self.assertEqual("max(a) > 1.0 or max(b) > 1.0 and max(c) > 1.0", text_of(parse("a>1 or (b>1 and (c>1))")))


class StructureTest(ExpressionCase):
    def assert_means(self, text, function):
        found = parse(text)
        for states in product([False, True], repeat=len(found.sub_expressions)):
            self.assertEqual(bool(function(*states)), found.holds(states), (text, states))

    def test_and_binds_tighter_than_or_in_every_spelling(self):
        for either, both in product(("or", "OR", "||", "Or"), ("and", "AND", "&&", "aNd")):
            self.assert_means(f"a>1 {either} b>1 {both} c>1", lambda a, b, c: a or (b and c))
            self.assert_means(f"a>1 {both} b>1 {either} c>1", lambda a, b, c: (a and b) or c)

    def test_parentheses_override_precedence(self):
        self.assert_means("(a>1 or b>1) and c>1", lambda a, b, c: (a or b) and c)
        self.assert_means("a>1 and (b>1 and (c>1 or d>1))", lambda a, b, c, d: a and b and (c or d))
        self.assert_means("((a>1))", lambda a: a)

    def test_signs_need_no_spaces(self):
        self.assertEqual(parse("a > 1 or b > 2 and c < 3"), parse("a>1||b>2&&c<3"))
        self.assertEqual(parse("a > 1 or (b > 2)"), parse("a>1or(b>2)"))

    def test_sub_expressions_are_numbered_in_the_order_of_the_text(self):
        found = parse("(c>1 or a>1) and c>1")

        self.assertEqual(["c", "a", "c"], [sub.metric_name for sub in found.sub_expressions])

    def test_a_single_sub_expression_is_an_expression(self):
        self.assertEqual(Expression(CPU), parse("avg(cpu) > 1"))

    def test_nested_equal_operators_are_merged(self):
        self.assertEqual(parse("a>1 or b>1 or c>1"), parse("(a>1 or b>1) or c>1"))
        self.assertIsInstance(parse("a>1 or b>1 and c>1").root, Or)
        self.assertIsInstance(parse("(a>1 or b>1) and c>1").root, And)


class RefusedTest(ExpressionCase):
    def test_an_error_has_the_position_and_the_expected_text(self):
        self.assert_refused("", 0, "the name of a metric", "a function")
        self.assert_refused("max(a)", 6, "comparison")
        self.assert_refused("max(a) > ", 9, "threshold")
        self.assert_refused("max(a) > b", 9, "threshold")
        self.assert_refused("max(a > 1", 6, '")"')
        self.assert_refused("(a > 1", 6, '")"')
        self.assert_refused("a > 1)", 5, "the end")
        self.assert_refused("a > 1 or", 8, "the name of a metric")
        self.assert_refused("a > 1 b > 2", 6, '"and"', '"or"', '"times"', "the end")
        self.assert_refused("a > 1 order > 2", 6, '"or"')
        self.assert_refused("a = 1", 2, "comparison")
        self.assert_refused("a b > 1", 2, "comparison")
        self.assert_refused("max(a, b) > 1", 7, "period", "deterministic")
        self.assert_refused("max(a, 60, deterministic) > 1", 9, '")"')
        self.assert_refused("max(a{k=v) > 1", 9, '"}"')
        self.assert_refused("max(a{k}) > 1", 7, '"="')
        self.assert_refused("max(a{k=v,}) > 1", 10, "key of a dimension")
        self.assert_refused("馬馬 馬 > 1", 3, "comparison")

    def test_unknown_functions_are_refused(self):
        self.assert_refused("a > 1 or median(b) > 1", 9, "min, max, sum, count, avg, last")

    def test_periods_that_are_not_whole_minutes_are_refused(self):
        for period in (0, 59, 61, 90):
            self.assert_refused(f"max(a, {period}) > 1", 7, "positive multiple of 60")
        for period in ("-60", "60.0", "1e3"):
            self.assertRaises(ExpressionError, parse, f"max(a, {period}) > 1")

    def test_zero_periods_are_refused(self):
        self.assert_refused("max(a) > 1 times 0", 17, "positive number of periods")
        self.assert_refused("max(a) > 1 times -1", 17, "number of periods")
        self.assert_refused("max(a) > 1 times", 16, "number of periods")

    def test_numbers_beyond_their_columns_are_refused(self):
        self.assertEqual(999_999_960, only("max(a, 999999960) > 1").period)
        self.assert_refused("max(a, 1000000020) > 1", 7, "9 digits")
        self.assert_refused("max(a) > 1 times 1000000000", 17, "9 digits")
        self.assert_refused("max(a) > 1e309", 9, "64-bit float")

    def test_empty_keys_and_values_are_refused(self):
        self.assert_refused("max(a{=v}) > 1", 6, "key of a dimension")
        self.assert_refused("max(a{k=}) > 1", 8, "value of a dimension")
        self.assert_refused("max(a{k=  ,l=m}) > 1", 10, "value of a dimension")

    def test_a_repeated_key_is_refused(self):
        self.assert_refused("max(a{k=v, k =w}) > 1", 11, "another key")

    def test_names_and_dimensions_that_metrics_cannot_have_are_refused(self):
        self.assert_refused(f"max({'n' * 256}) > 1", 4, "name of a metric", "255")
        self.assert_refused(f"max(a{{{'k' * 256}=v}}) > 1", 6, "key of a dimension", "255")
        self.assert_refused(f"max(a{{k={'v' * 256}}}) > 1", 8, "value of a dimension", "255")
        self.assert_refused("max(a{_k=v}) > 1", 6, "starts with _")
        self.assert_refused("max(a\0) > 1", 4, "NUL")
        self.assert_refused("max(\ud800) > 1", 4, "surrogate")
        self.assertEqual("n" * 255, only(f"max({'n' * 255}) > 1").metric_name)

    def test_signs_of_the_grammar_in_names_are_refused(self):
        for sign in (*'<>={},"\\;&()', "||"):
            self.assertRaises(ExpressionError, parse, f"max(a{sign}b) > 1")
            self.assertRaises(ExpressionError, parse, f"max(a{{k{sign}b=v}}) > 1")
            self.assertRaises(ExpressionError, parse, f"max(a{{k=v{sign}b}}) > 1")

    def test_more_dimensions_than_a_metric_can_have_are_refused(self):
        dimensions = [f"k{number}=v" for number in range(101)]

        self.assertEqual(100, len(only(f"max(a{{{','.join(dimensions[:100])}}}) > 1").dimensions))
        self.assert_refused(f"max(a{{{','.join(dimensions)}}}) > 1", 4, "101", "100")


class HostileTest(ExpressionCase):
    def test_any_text_longer_than_16_kib_is_refused(self):
        for text in (
            "(" * 10_000 + "a>1" + ")" * 10_000,
            "a" * 1_000_000,
            "(" * 1_000_000,
            "千" * 6_000,
            "\ud800" * 20_000,
        ):
            self.assert_refused(text, 0, "at most 16384 bytes")

    def test_16_kib_are_allowed(self):
        self.assertEqual("a", only("a > 1".ljust(expression.MOST_BYTES)).metric_name)
        self.assert_refused("a > 1".ljust(expression.MOST_BYTES + 1), 0, "16385")

    def test_the_depth_of_parentheses_is_limited_only_by_the_length_of_the_text(self):
        self.assertEqual(parse("a>1"), parse("(" * 8_000 + "a>1" + ")" * 8_000))
        self.assert_refused("(" * 8_000 + "a>1" + ")" * 7_999, 16_002 - 0, '")"')

    def test_100_sub_expressions_are_allowed_and_101_are_not(self):
        for separator in (" or ", "&&"):
            self.assertEqual(100, len(parse(separator.join(["a>1"] * 100)).sub_expressions))
            self.assert_refused(separator.join(["a>1"] * 101), 0, "101 sub-expressions", "at most 100")

    def test_sub_expressions_in_deep_parentheses_are_counted(self):
        self.assert_refused("a>1 and (a>1 or (" * 600 + "a>1" + "))" * 600, 0, "1201 sub-expressions")

    def test_the_most_deeply_nested_expression_can_be_printed_and_evaluated(self):
        deepest = parse("a>1 and (b>1 or (" * 49 + "c>1 and d>1" + "))" * 49)

        self.assertEqual(100, len(deepest.sub_expressions))
        self.assertFalse(deepest.holds([False] * 100))
        self.assertTrue(deepest.holds([True] * 100))
        self.assertEqual(deepest, parse(text_of(deepest)))
        self.assertEqual(deepest, pickle.loads(pickle.dumps(deepest)))
        self.assertEqual(hash(deepest), hash(parse(text_of(deepest))))
        self.assertIn("SubExpression", repr(deepest))

    def test_text_that_slows_scanners_down_is_parsed_in_time(self):
        for text in (" " * 16_384, "a|" * 8_000, "|" * 16_384, "x " * 8_000, "a{k=" + "v " * 8_000, "1" * 16_384):
            self.assertRaises(ExpressionError, parse, text)
        for text in (
            "a>" + "1" * 16_000,
            "a>" + "1e" * 8_000,
            "max(a," + "6" * 16_000 + ")>1",
            "a" + " " * 16_000 + "(",
        ):
            self.assertRaises(ExpressionError, parse, text)


_PIECES = [
    *"(){}=,<>&|.-+ \t\0_",
    "&&",
    "||",
    "<=",
    "and",
    "or",
    "times",
    "deterministic",
    "gt",
    "max",
    "avg",
    "a",
    "1",
    "60",
    "1e9",
    "é",
]


# Random expressions, in which words of the grammar are as likely to be names as any other text.
_WORDS = [
    "and", "or", "times", "deterministic", "gt", "lte", "max", "LAST", "60", "1e5", "-1", "a", "é", "馬", "|", "a.b",
]  # fmt: skip
# Characters of the grammar, characters that models refuse, and characters that the grammar ignores.
_NEVER = '<>={},"\\;&()\0'
_BLANKS = " \t\r\n\f\v"

_characters = st.characters(exclude_characters=_NEVER + _BLANKS, exclude_categories=["Cs"])
_words = st.text(_characters, min_size=1, max_size=8).filter(lambda text: "||" not in text)
_names = st.sampled_from(_WORDS) | _words
_values = st.sampled_from([*_WORDS, "https://a.b/c?d", "two words"]) | st.lists(_words, min_size=1, max_size=3).map(
    " ".join
)
_keys = _values.filter(lambda text: not text.startswith("_"))
_thresholds = st.floats(allow_nan=False, allow_infinity=False).map(lambda number: number + 0.0) | st.integers(
    -100, 100
).map(float)


_dimensions = st.dictionaries(_keys, _values, max_size=3).map(lambda found: tuple(sorted(found.items())))
_sub_expressions = st.builds(
    SubExpression,
    function=st.sampled_from(FUNCTIONS),
    metric_name=_names,
    dimensions=_dimensions,
    deterministic=st.booleans(),
    operator=st.sampled_from(["LT", "LTE", "GT", "GTE"]),
    threshold=_thresholds,
    period=st.integers(1, 5).map(lambda minutes: minutes * 60),
    periods=st.integers(1, 5),
)


def _of(kind, operands):
    """Join operands as `parse` does: no ``or`` directly within an ``or``."""
    found = []
    for each in operands:
        found += each.operands if isinstance(each, kind) else [each]
    return kind(tuple(found))


def _groups(inner):
    return st.builds(_of, st.sampled_from([And, Or]), st.lists(inner, min_size=2, max_size=4))


_expressions = st.recursive(_sub_expressions, _groups, max_leaves=12).map(Expression)


class PropertyTest(base.BaseTestCase):
    @given(_expressions)
    def test_a_random_expression_is_unchanged_after_printing_and_parsing(self, found):
        self.assertEqual(found, parse(text_of(found)))

    @given(_expressions, st.data())
    def test_a_random_expression_is_evaluated_as_python_evaluates_its_operators(self, found, data):
        states = data.draw(
            st.lists(st.booleans(), min_size=len(found.sub_expressions), max_size=len(found.sub_expressions))
        )
        left = iter(states)

        def value(node):
            if isinstance(node, SubExpression):
                return next(left)
            operands = [value(each) for each in node.operands]
            return all(operands) if isinstance(node, And) else any(operands)

        self.assertEqual(value(found.root), found.holds(states))

    @given(st.text() | st.lists(st.sampled_from(_PIECES), max_size=30).map("".join))
    @example("max(a{k=v}) > 1 times 99999999999999999999")
    def test_random_text_raises_only_the_documented_error(self, text):
        try:
            found = parse(text)
        except ExpressionError as error:
            self.assertTrue(0 <= error.offset <= len(text))
        else:
            self.assertEqual(found, parse(text_of(found)))


PAGE = Path(__file__).parents[4] / "doc" / "source" / "user" / "alarm_expressions.rst"
NOON_MS = 12 * 3_600_000


def blocks():
    found = re.findall(r"code-block:: text\n\n((?:   .*\n|\n)+)", PAGE.read_text())
    return [[line.strip() for line in block.strip().splitlines()] for block in found]


def time_ms(text):
    hours, minutes, seconds = map(int, text.split(":"))
    return ((hours * 60 + minutes) * 60 + seconds) * 1000


class ExpressionsPageTest(base.BaseTestCase):
    def test_the_examples_of_the_page_are_valid(self):
        first, _, examples, *_ = blocks()

        self.assertEqual(4, len([parse(text) for text in examples]))
        self.assertEqual(3, parse(first[0]).sub_expressions[0].periods)

    def test_the_error_on_the_page_has_the_position_and_the_expected_text(self):
        text, message = blocks()[3]

        self.assertEqual(message, str(self.assertRaises(ExpressionError, parse, text)))

    def test_the_states_change_as_the_page_describes(self):
        lines = iter(blocks()[4])
        measured = [line.split() for line in iter(lambda: next(lines), "")]
        readings = [(time_ms(time), float(value), 0) for time, value in measured]
        expected, found = [], []
        for line in filter(None, lines):
            if not line[0].isdigit():
                evaluator = Evaluator(parse(line), evaluated_to_ms=NOON_MS + 30_000)
                found += evaluator.batch(readings, NOON_MS + 600_000)
            else:
                time, state = line.split()
                expected.append((time_ms(time), state))

        self.assertEqual(8, len(expected))
        self.assertEqual(expected, [(each.timestamp_ms, each.new_state) for each in found])
