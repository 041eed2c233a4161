# SPDX-License-Identifier: Apache-2.0
"""The members of a JSON object, each looked at by its rule; what is wrong is collected, not raised at the first."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from monasca_common.models import json_text
from monasca_common.models.errors import InvalidEnvelope, NotJson, Violation, joined, key_place
from monasca_common.models.limits import ANY_TEXT, MOST_DIMENSIONS, Limits, TextRule, too_many_dimensions

Parsed = TypeVar("Parsed")

NOT_AN_OBJECT = "must be an object"
_MISSING = "must be given"
_NOT_TEXT = "must be a string"


class Fields:
    """``place`` is where the object stands in the whole; ``violations`` is shared by all objects of one whole.

    What a rule refuses comes back as a harmless stand-in, so that the rest can be looked at as well.
    """

    def __init__(self, members: Any, violations: list[Violation], place: str = "") -> None:
        self._place = place
        self._violations = violations
        self._is_known = isinstance(members, dict)  # else nothing is said of its members
        if not self._is_known:
            violations.append(Violation(place, NOT_AN_OBJECT))
        self.members: dict[str, Any] = members if isinstance(members, dict) else {}

    @classmethod
    def read(cls, text: bytes | None, violations: list[Violation]) -> Fields:
        """An object's text. Text that is not JSON is a violation; it is read as far as it goes, to say where."""
        if text is None:
            violations.append(Violation("", "has no value"))
            return cls._nothing(violations)
        try:
            return cls(json_text.read(text), violations)
        except NotJson as error:
            violations.extend(error.violations)
        try:
            return cls(json_text.read_leniently(text), violations)
        except ValueError:
            return cls._nothing(violations)

    @classmethod
    def _nothing(cls, violations: list[Violation]) -> Fields:
        fields = cls({}, violations)
        fields._is_known = False
        return fields

    def blame(self, key: str | None, rules: Iterable[str], *, too_large: bool = False) -> None:
        """``key`` None: the object as a whole."""
        place = joined(self._place, "" if key is None else key_place(key))
        self._violations += [Violation(place, rule, too_large) for rule in rules]

    def get(self, key: str, *, required: bool = False) -> Any:
        """None where it is missing or null, which is a violation of what is required, once."""
        value = self.members.get(key)
        if value is None and required and self._is_known:
            self.blame(key, ["must not be null" if key in self.members else _MISSING])
        return value

    def text(self, key: str, rule: TextRule = ANY_TEXT, *, required: bool = True) -> str | None:
        value = self.get(key, required=required)
        if value is None:
            return None
        if not isinstance(value, str):
            self.blame(key, [_NOT_TEXT])
            return None
        self.blame(key, rule.faults(value))
        return value

    def parsed(self, key: str, parse: Callable[[Any], Parsed], *, required: bool = True) -> Parsed | None:
        """``parse`` raises a `ValueError` whose text is the rule."""
        value = self.get(key, required=required)
        if value is None:
            return None
        try:
            return parse(value)
        except ValueError as error:
            self.blame(key, [str(error)])
            return None

    def inner(self, key: str, *, required: bool = True) -> Fields:
        """An object within this one; an empty one where it is missing."""
        value = self.get(key, required=required)
        fields = Fields({} if value is None else value, self._violations, joined(self._place, key))
        if value is None and required:
            fields._is_known = False
        return fields

    def dimensions(self, limits: Limits, most: int = MOST_DIMENSIONS) -> dict[str, str]:
        """The object of that name, of ``most`` entries."""
        fields = self.inner("dimensions", required=False)
        if len(fields.members) > most:
            fields.blame(None, [too_many_dimensions(len(fields.members), most)])
            return {}
        for name, value in fields.members.items():
            fields.blame(name, (f"as a key {fault}" for fault in limits.key.faults(name)))
            if isinstance(value, str):
                fields.blame(name, limits.value.faults(value))
            else:
                fields.blame(name, [_NOT_TEXT])
        return fields.members

    def document(self, key: str, kind: type, default: str) -> str:
        """Any JSON of one kind (dict, list), as text."""
        value = self.get(key)
        if value is None:
            return default
        if not isinstance(value, kind):
            self.blame(key, [NOT_AN_OBJECT if kind is dict else "must be an array"])
            return default
        written, fault = json_text.checked(value)
        if fault:
            self.blame(key, [fault])
        return written.decode()

    def raise_violations(self) -> None:
        if self._violations:
            raise InvalidEnvelope(self._violations)
