# SPDX-License-Identifier: Apache-2.0
"""Generate random expressions, in which words of the grammar are as likely to be names as any other text."""

from hypothesis import strategies as st

from monasca_common.alarms.expression import FUNCTIONS, And, Expression, Or, SubExpression

WORDS = (
    "and",
    "or",
    "times",
    "deterministic",
    "gt",
    "lte",
    "max",
    "LAST",
    "60",
    "1e5",
    "-1",
    "a",
    "é",
    "馬",
    "|",
    "a.b",
)
# Characters of the grammar, characters that models refuse, and characters that the grammar ignores.
_NEVER = '<>={},"\\;&()\0'
_BLANKS = " \t\r\n\f\v"

_characters = st.characters(exclude_characters=_NEVER + _BLANKS, exclude_categories=["Cs"])
_words = st.text(_characters, min_size=1, max_size=8).filter(lambda text: "||" not in text)
names = st.sampled_from(WORDS) | _words
values = st.sampled_from([*WORDS, "https://a.b/c?d", "two words"]) | st.lists(_words, min_size=1, max_size=3).map(
    " ".join
)
keys = values.filter(lambda text: not text.startswith("_"))
thresholds = st.floats(allow_nan=False, allow_infinity=False).map(lambda number: number + 0.0) | st.integers(
    -100, 100
).map(float)


def dimensions(most=3):
    return st.dictionaries(keys, values, max_size=most).map(lambda found: tuple(sorted(found.items())))


sub_expressions = st.builds(
    SubExpression,
    function=st.sampled_from(FUNCTIONS),
    metric_name=names,
    dimensions=dimensions(),
    deterministic=st.booleans(),
    operator=st.sampled_from(["LT", "LTE", "GT", "GTE"]),
    threshold=thresholds,
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


expressions = st.recursive(sub_expressions, _groups, max_leaves=12).map(Expression)


def text_of(expression):
    """Return a text that parses to an equal expression, unless the text exceeds the allowed length."""
    return _text_of_node(expression.root)


def _text_of_node(root):
    texts, waiting = {}, [root]  # keyed by the identity of a node; iterative, like `parse`
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
    return texts[id(root)]
