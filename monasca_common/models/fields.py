# SPDX-License-Identifier: Apache-2.0
"""Validation of the members of a JSON object; all violations are collected before an error is raised."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from monasca_common.models import json_text
from monasca_common.models.errors import InvalidEnvelope, Unreadable, Violation, escaped_key, joined
from monasca_common.models.limits import ANY_TEXT, Limits, TextRule, too_many_dimensions

Parsed = TypeVar("Parsed")

NOT_AN_OBJECT = "must be an object"
_NOT_TEXT = "must be a string"


class Fields:
    """The members of an object. ``place``: its place in the document. ``violations``: shared with its inner objects.

    A value that breaks a rule is replaced by a placeholder, so that the remaining members are also checked.
    """

    def __init__(self, members: Any, place: str = "", violations: list[Violation] | None = None) -> None:
        self._place = place
        self.violations: list[Violation] = [] if violations is None else violations
        self._is_object = isinstance(members, dict)  # if this is false, missing members are not reported
        if not self._is_object:
            self.violations.append(Violation(place, NOT_AN_OBJECT))
        self.members: dict[str, Any] = members if isinstance(members, dict) else {}

    @classmethod
    def read(cls, text: bytes | None) -> Fields:
        """Read an object. Text that is not JSON is a violation, and is read leniently to locate it."""
        if text is None:
            return cls._empty("", [Violation("", "has no value")])
        try:
            return cls(json_text.read(text))
        except Unreadable as error:
            violations = list(error.violations)
        try:
            return cls(json_text.read_leniently(text), "", violations)
        except ValueError:
            return cls._empty("", violations)

    @classmethod
    def _empty(cls, place: str, violations: list[Violation]) -> Fields:
        """Return an object without members, which does not report missing ones."""
        fields = cls({}, place, violations)
        fields._is_object = False
        return fields

    def report(self, key: str | None, rules: Iterable[str], *, too_large: bool = False) -> None:
        """Add violations of the member ``key``, or of the object if ``key`` is ``None``."""
        place = joined(self._place, "" if key is None else escaped_key(key))
        self.violations += [Violation(place, rule, too_large) for rule in rules]

    def get(self, key: str, *, required: bool = False) -> Any:
        """Return a member, or ``None`` if it is missing or null, which is a violation if it is ``required``."""
        value = self.members.get(key)
        if value is None and required and self._is_object:
            self.report(key, ["must not be null" if key in self.members else "is required"])
        return value

    def text(self, key: str, rule: TextRule = ANY_TEXT, *, required: bool = True) -> str | None:
        value = self.get(key, required=required)
        if value is None:
            return None
        if not isinstance(value, str):
            self.report(key, [_NOT_TEXT])
            return None
        self.report(key, rule.faults(value))
        return value

    def parsed(self, key: str, parse: Callable[[Any], Parsed], *, required: bool = True) -> Parsed | None:
        """Return a parsed member. ``parse`` raises a `ValueError` whose text is the rule."""
        value = self.get(key, required=required)
        if value is None:
            return None
        try:
            return parse(value)
        except ValueError as error:
            self.report(key, [str(error)])
            return None

    def inner(self, key: str, *, required: bool = True) -> Fields:
        """Return the nested object ``key``, or an empty object if it is missing."""
        value, place = self.get(key, required=required), joined(self._place, key)
        if value is None and required:
            return self._empty(place, self.violations)
        return Fields({} if value is None else value, place, self.violations)

    def dimensions(self, limits: Limits, most: int) -> dict[str, str]:
        """Return the member ``dimensions``, with at most ``most`` entries."""
        fields = self.inner("dimensions", required=False)
        if len(fields.members) > most:
            fields.report(None, [too_many_dimensions(len(fields.members), most)])
            return {}
        for name, value in fields.members.items():
            fields.report(name, (f"as a key {fault}" for fault in limits.key.faults(name)))
            if isinstance(value, str):
                fields.report(name, limits.value.faults(value))
            else:
                fields.report(name, [_NOT_TEXT])
        return fields.members

    def document(self, key: str, kind: type) -> str:
        """Return a member of type ``kind`` (dict, list) as JSON; a missing member is like an empty one."""
        value = self.get(key)
        if value is not None and not isinstance(value, kind):
            self.report(key, [NOT_AN_OBJECT if kind is dict else "must be an array"])
            value = None
        written, fault = json_text.checked(kind() if value is None else value)
        if fault:
            self.report(key, [fault])
        return written.decode()

    def raise_violations(self) -> None:
        if self.violations:
            raise InvalidEnvelope(self.violations)
