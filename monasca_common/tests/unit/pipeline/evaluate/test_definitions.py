# SPDX-License-Identifier: Apache-2.0
"""The sub-expressions that a series matches, compared with a plain comparison with all sub-expressions."""

from hypothesis import given
from hypothesis import strategies as st
from oslotest import base

from monasca_common.alarms.expression import parse
from monasca_common.models.series import Series, series_id
from monasca_common.pipeline.evaluate.definitions import IndexedSubExpression, SubExpressionIndex, match_key


def active(number, text, *, tenant="t", match_by=(), created_ms=0):
    (expression,) = parse(text).sub_expressions
    return IndexedSubExpression(f"s{number}", 0, tenant, tuple(match_by), created_ms, expression)


def series(name="cpu", tenant="t", **dimensions):
    return Series(series_id(tenant, "r", name, dimensions), tenant, "r", name, dimensions)


def found(index, one):
    return {target.sub_expression.id: target.values for target in index.targets(one)}


class SubExpressionIndexTest(base.BaseTestCase):
    CASES = (
        ("by name", "max(cpu) > 1", (), series(a="b"), ()),
        ("another name", "max(mem) > 1", (), series(), None),
        ("a dimension that the series has", "max(cpu{a=b}) > 1", (), series(a="b", c="d"), ()),
        ("another value", "max(cpu{a=x}) > 1", (), series(a="b"), None),
        ("one of two dimensions is missing", "max(cpu{a=b,c=d}) > 1", (), series(a="b"), None),
        ("two dimensions", "max(cpu{a=b,c=d}) > 1", (), series(a="b", c="d", e="f"), ()),
        ("match by", "max(cpu) > 1", ("host",), series(host="h"), ("h",)),
        ("no dimension of match_by is present", "max(cpu) > 1", ("host", "device"), series(a="b"), None),
        ("one dimension of match_by is present", "max(cpu) > 1", ("host", "device"), series(device="d"), ("", "d")),
        ("another tenant's", "max(cpu) > 1", (), series(tenant="u"), None),
    )

    def test_a_series_matches_a_sub_expression_by_each_rule(self):
        for name, text, match_by, one, values in self.CASES:
            with self.subTest(name):
                index = SubExpressionIndex([active(1, text, match_by=match_by)])
                self.assertEqual({} if values is None else {"s1": values}, found(index, one))

    def test_a_series_is_compared_with_few_of_many_definitions(self):
        many = [active(number, f"max(cpu{{service=nova,host=h{number}}}) > 1") for number in range(1000)]
        index = SubExpressionIndex(many)
        compared = index._by_pair["t", "cpu"]
        self.assertEqual({"s7": ()}, found(index, series(service="nova", host="h7")))
        self.assertEqual({1}, set(map(len, compared.values())))

    @given(st.data())
    def test_the_index_finds_the_same_as_a_comparison_with_all(self, data):
        pairs = st.dictionaries(st.sampled_from("abc"), st.sampled_from("xy"), max_size=3)
        texts = data.draw(st.lists(st.tuples(st.sampled_from(["cpu", "mem"]), pairs), max_size=12))
        subs = [
            active(number, f"max({name}{{{','.join(f'{key}={value}' for key, value in of.items())}}}) > 1")
            for number, (name, of) in enumerate(texts)
        ]
        name, dimensions = data.draw(st.tuples(st.sampled_from(["cpu", "mem"]), pairs))
        expected = {
            f"s{number}"
            for number, (of_name, of) in enumerate(texts)
            if of_name == name and of.items() <= dimensions.items()
        }
        self.assertEqual(expected, set(found(SubExpressionIndex(subs), series(name, **dimensions))))

    def test_different_values_have_different_keys(self):
        values = [("a", "b"), ("ab", ""), ("", "ab"), ("a,b",), (), ("",), ('a","b',)]
        keys = set(map(match_key, values))
        self.assertEqual({16}, set(map(len, keys)))
        self.assertEqual(len(values), len(keys))
