# SPDX-License-Identifier: Apache-2.0
"""Alarm expressions, such as ``avg(cpu.user_perc{service=nova}) > 85 times 3``: their grammar, parser and values. No
I/O. No function recurses over the nesting of an expression, and the time to parse a text within the limits is bounded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cache
from math import isfinite
from types import MappingProxyType
from typing import TypeAlias, cast

from lark import Lark, Token, Transformer, UnexpectedInput, UnexpectedToken, v_args

from monasca_common.models.limits import MOST_DIMENSIONS, POSTED, TextRule, too_many_dimensions

FUNCTIONS = ("min", "max", "sum", "count", "avg", "last")

_BLANKS = r" \t\r\n\f\v"
# The lexer ends a name at a character that no name may contain, so ``a>1||b>2`` needs no spaces. Parentheses belong to
# the grammar, although values of posted dimensions may contain them. The other rules for names are in ``models``.
_FORBIDDEN = "".join(f"\\x{ord(sign):02x}" for sign in sorted({*POSTED.name.forbidden, *"()"} - {" "}))
_INNER = rf"(?:(?!\|\|)[^{_FORBIDDEN}])"
_VISIBLE = rf"(?:(?!\|\|)[^{_FORBIDDEN}{_BLANKS}])"
_TEXT = f"{_VISIBLE}(?:{_INNER}*{_VISIBLE})?"

# Words are reserved only where the parser expects them (contextual lexer), so a metric may have the name ``or``. AND
# and OR must not be followed by a character of a name; otherwise ``order > 1`` would be parsed as ``or der > 1``.
GRAMMAR = rf"""
?start: any_of
?any_of: all_of (_OR all_of)*
?all_of: sub (_AND sub)*
?sub: "(" any_of ")"
    | metric OPERATOR THRESHOLD [_TIMES PERIODS] -> bare
    | FUNCTION "(" metric ["," DETERMINISTIC] ["," PERIOD] ")" OPERATOR THRESHOLD [_TIMES PERIODS] -> call
metric: NAME ("{{" (dimension ("," dimension)*)? "}}")?
dimension: KEY "=" VALUE

FUNCTION.2: /{_VISIBLE}+(?=[{_BLANKS}]*\()/
NAME: /{_VISIBLE}+/
KEY: /{_TEXT}/
VALUE: /{_TEXT}/
DETERMINISTIC: /deterministic/i
PERIOD: /[0-9]+/
OPERATOR: /<=|>=|<|>|lte|gte|lt|gt/i
THRESHOLD: /[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:e[+-]?[0-9]+)?/i
_TIMES: /times/i
PERIODS: /[0-9]+/
_AND: /&&|and(?!{_VISIBLE})/i
_OR: /\|\||or(?!{_VISIBLE})/i
%ignore /[{_BLANKS}]+/
"""

NAMES = MappingProxyType(
    {
        "$END": "the end of the text",
        "COMMA": '","',
        "DETERMINISTIC": '"deterministic"',
        "EQUAL": '"="',
        "FUNCTION": f"a function ({', '.join(FUNCTIONS)})",
        "KEY": "the key of a dimension",
        "LBRACE": '"{"',
        "LPAR": '"("',
        "NAME": "the name of a metric",
        "OPERATOR": "a comparison (<, <=, >, >=, lt, lte, gt, gte)",
        "PERIOD": "a period in seconds",
        "PERIODS": "a number of periods",
        "RBRACE": '"}"',
        "RPAR": '")"',
        "THRESHOLD": "a threshold (a number)",
        "VALUE": "the value of a dimension",
        "_AND": '"and"',
        "_OR": '"or"',
        "_TIMES": '"times"',
    }
)
"""The names of tokens in errors."""

MOST_BYTES = 16 * 1024
MOST_SUB_EXPRESSIONS = 100
MOST_DIGITS = 9
"""The maximum number of digits in a period and in a number of periods, so that both fit into 32 bits."""

_SIGNS = {"LT": "<", "LTE": "<=", "GT": ">", "GTE": ">="}
_OPERATORS = {**{sign: name for name, sign in _SIGNS.items()}, **{name.lower(): name for name in _SIGNS}}


class ExpressionError(ValueError):
    """The text is not an expression. The message states the position and the expected tokens.

    ``offset``: the position in characters, starting at 0; it is 0 if the error concerns the whole text.
    """

    def __init__(self, offset: int, problem: str) -> None:
        super().__init__(f"at character {offset}: {problem}")
        self.offset = offset


@dataclass(frozen=True, slots=True)
class SubExpression:
    """A sub-expression. ``function``: one of `FUNCTIONS`. ``dimensions``: sorted. ``operator``: LT, LTE, GT or GTE.
    ``period``: in seconds."""

    function: str
    metric_name: str
    dimensions: tuple[tuple[str, str], ...]
    deterministic: bool
    operator: str
    threshold: float
    period: int = 60
    periods: int = 1

    @property
    def text(self) -> str:
        """Return the text that the reasons of transitions show."""
        dimensions = ", ".join(f"{key}={value}" for key, value in self.dimensions)
        return (
            f"{self.function}({self.metric_name}"
            + (f"{{{dimensions}}}" if dimensions else "")
            + (", deterministic" if self.deterministic else "")
            + (f", {self.period}" if self.period != 60 else "")
            + f") {_SIGNS[self.operator]} {decimal_text(self.threshold)}"
            + (f" times {self.periods}" if self.periods != 1 else "")
        )


@dataclass(frozen=True, slots=True)
class And:
    operands: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Or:
    operands: tuple[Node, ...]


Node: TypeAlias = SubExpression | And | Or
_Metric: TypeAlias = tuple[str, tuple[tuple[str, str], ...]]
"""Name and dimensions."""


@dataclass(frozen=True, slots=True)
class Expression:
    """An expression. ``sub_expressions``: all sub-expressions in the order of the text, with duplicates."""

    root: Node
    sub_expressions: tuple[SubExpression, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        found = tuple(node for node in _operands_first(self.root) if isinstance(node, SubExpression))
        object.__setattr__(self, "sub_expressions", found)

    @property
    def structure(self) -> tuple[tuple[str, int], ...]:
        """Return how ``and`` and ``or`` join `sub_expressions`, independent of their content."""
        return tuple(
            (type(node).__name__, 0 if isinstance(node, SubExpression) else len(node.operands))
            for node in _operands_first(self.root)
        )

    def holds(self, alarm_states: Sequence[bool]) -> bool:
        """Return whether the expression is true. ``alarm_states``: whether each of ``sub_expressions`` is true."""
        left = iter(alarm_states)
        values: list[bool] = []
        for node in _operands_first(self.root):
            if isinstance(node, SubExpression):
                values.append(next(left))
            else:
                operands = values[-len(node.operands) :]
                del values[-len(node.operands) :]
                values.append(all(operands) if isinstance(node, And) else any(operands))
        return values.pop()


def parse(text: str) -> Expression:
    """Parse any text. Raises only `ExpressionError`."""
    # Characters are counted first, so that a huge text is not encoded; a text has at least as many bytes as characters.
    if len(text) > MOST_BYTES or (size_bytes := len(text.encode(errors="replace"))) > MOST_BYTES:
        size = f"{len(text)} characters" if len(text) > MOST_BYTES else f"{size_bytes} bytes"
        raise ExpressionError(0, f"has {size}: at most {MOST_BYTES} bytes are allowed")
    try:
        expression = Expression(cast(Node, _parser().parse(text)))
    except UnexpectedInput as error:
        raise _unexpected(error, text) from None
    count = len(expression.sub_expressions)
    if count > MOST_SUB_EXPRESSIONS:
        raise ExpressionError(0, f"has {count} sub-expressions: at most {MOST_SUB_EXPRESSIONS} are allowed")
    return expression


@cache
def _parser() -> Lark:
    # The parser calls the transformer when a rule is complete, so no tree is built.
    return Lark(GRAMMAR, parser="lalr", lexer="contextual", transformer=_Values())


@v_args(inline=True)
class _Values(Transformer[Token, Node]):
    """Converts parsed rules to values, with one method for each rule. It is stateless, because threads share it."""

    def any_of(self, *operands: Node) -> Or:
        return Or(_flat(Or, operands))

    def all_of(self, *operands: Node) -> And:
        return And(_flat(And, operands))

    def bare(self, metric: _Metric, operator: Token, threshold: Token, periods: Token | None) -> SubExpression:
        function = Token("FUNCTION", "max" if _OPERATORS[operator.lower()].startswith("G") else "min")
        return self.call(function, metric, None, None, operator, threshold, periods)

    def call(
        self,
        function: Token,
        metric: _Metric,
        deterministic: Token | None,
        period: Token | None,
        operator: Token,
        threshold: Token,
        periods: Token | None,
    ) -> SubExpression:
        if function.lower() not in FUNCTIONS:
            raise ExpressionError(_offset(function), f"expected {NAMES['FUNCTION']}")
        limit = float(threshold) + 0.0  # -0.0 is 0.0
        if not isfinite(limit):
            raise ExpressionError(_offset(threshold), "expected a threshold that a 64-bit float can hold")
        seconds = 60 if period is None else _whole_number(period)
        if seconds == 0 or seconds % 60:
            raise ExpressionError(_offset(period), "expected a period in seconds that is a positive multiple of 60")
        times = 1 if periods is None else _whole_number(periods)
        if times == 0:
            raise ExpressionError(_offset(periods), "expected a positive number of periods")
        name, dimensions = metric
        is_deterministic, comparison = deterministic is not None, _OPERATORS[operator.lower()]
        return SubExpression(function.lower(), name, dimensions, is_deterministic, comparison, limit, seconds, times)

    def metric(self, name: Token, *dimensions: tuple[Token, Token]) -> _Metric:
        found: dict[str, str] = {}
        for key, value in dimensions:
            if key in found:
                raise ExpressionError(_offset(key), "expected another key: the metric already has this key")
            found[_checked(key, POSTED.key)] = _checked(value, POSTED.value)
        if len(found) > MOST_DIMENSIONS:
            raise ExpressionError(_offset(name), f"the metric {too_many_dimensions(len(found), MOST_DIMENSIONS)}")
        return _checked(name, POSTED.name), tuple(sorted(found.items()))

    def dimension(self, key: Token, value: Token) -> tuple[Token, Token]:
        return key, value


def _flat(kind: type[And] | type[Or], operands: Sequence[Node]) -> tuple[Node, ...]:
    """Merge nested operands of the same kind: ``(a or b) or c`` becomes ``a or b or c``."""
    found: list[Node] = []
    for each in operands:
        found += each.operands if isinstance(each, kind) else (each,)
    return tuple(found)


def _operands_first(root: Node) -> Iterator[Node]:
    """Return all nodes from left to right, each after its operands."""
    waiting, found = [root], []
    while waiting:
        node = waiting.pop()
        found.append(node)
        if not isinstance(node, SubExpression):
            waiting += node.operands
    return reversed(found)


def _checked(token: Token, rule: TextRule) -> str:
    for fault in rule.faults(token):
        raise ExpressionError(_offset(token), f"{NAMES[token.type]} {fault}")
    return str(token)


def _whole_number(token: Token) -> int:
    if len(token) > MOST_DIGITS:
        raise ExpressionError(_offset(token), f"expected {NAMES[token.type]} of at most {MOST_DIGITS} digits")
    return int(token)


def _offset(token: Token | None) -> int:
    return (token and token.start_pos) or 0


def decimal_text(number: float) -> str:
    """Return the number with a decimal point and without an exponent."""
    text = format(Decimal(repr(number)), "f")
    return text if "." in text else f"{text}.0"


def _unexpected(error: UnexpectedInput, text: str) -> ExpressionError:
    at_end = isinstance(error, UnexpectedToken) and error.token.type == "$END"
    offset = len(text) if at_end else error.pos_in_stream or 0
    parser = error.interactive_parser
    possible: Iterable[str] = parser.accepts() if parser else ()  # type: ignore[no-untyped-call]
    expected = sorted(NAMES[name] for name in possible)
    return ExpressionError(offset, f"expected {' or '.join(expected)}")
