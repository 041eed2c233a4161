# SPDX-License-Identifier: Apache-2.0
"""The grammar of alarm expressions, for `lark`, and what its tokens are called in errors."""

from __future__ import annotations

from types import MappingProxyType

from monasca_common.models.limits import POSTED

FUNCTIONS = ("min", "max", "sum", "count", "avg", "last")

_BLANKS = r" \t\r\n\f\v"
# What no name may hold anywhere is not even lexed as one, so that ``a>1||b>2`` needs no blanks. Parentheses are signs
# of the grammar although values of posted dimensions may hold them. What else a name may not be is a rule of models.
_FORBIDDEN = "".join(f"\\x{ord(sign):02x}" for sign in sorted({*POSTED.name.forbidden, *"()"} - {" "}))
_INNER = rf"(?:(?!\|\|)[^{_FORBIDDEN}])"
_VISIBLE = rf"(?:(?!\|\|)[^{_FORBIDDEN}{_BLANKS}])"
_TEXT = f"{_VISIBLE}(?:{_INNER}*{_VISIBLE})?"

# Words are reserved only where they can stand: the lexer asks the parser which tokens are possible (so a metric may be
# named ``or``). AND and OR end where a name would go on, or ``order > 1`` would be read as ``or der > 1``.
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
        "$END": "the end",
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
"""What a user calls a token."""
