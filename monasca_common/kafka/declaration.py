# SPDX-License-Identifier: Apache-2.0
"""An option is declared once: as a field of a frozen settings class.

`option` makes a field from what an operator and a reader must know: help, bounds, unit, secrecy, former names;
`declared` and `made_of` do for fields without a default, and for those of several options. `options_of` collects the
declarations of a class. `monasca_common.kafka.config` makes oslo.config's options of them; settings are made without
it as well, by their constructors.
"""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, replace
from types import MappingProxyType
from typing import Any

_OPTION, _PARTS = "option", "parts"


class OptionType(enum.Enum):
    """How an operator writes a value."""

    TEXT = "text"
    LITERAL_TEXT = "text in which each $ is doubled"
    INTEGER = "an integer"
    NUMBER = "a number"
    SWITCH = "true or false"
    PORT = "a port"
    LIST = "values separated by commas"
    LINES = "name=value, one a line; the line is repeated"


_TYPES = {bool: OptionType.SWITCH, int: OptionType.INTEGER, float: OptionType.NUMBER, str: OptionType.TEXT}
_CONTAINERS = {tuple: OptionType.LIST, frozenset: OptionType.LIST, Mapping: OptionType.LINES}


@dataclass(frozen=True, slots=True)
class Option:
    """One option. ``default`` is the value while nobody sets it; ``None`` means unset.

    ``inherited``: a consumer's group that leaves it unset takes the value of ``[kafka]``.
    ``old_names``: former names in the same group, or ``group.name``.
    """

    name: str
    help: str
    type: OptionType = OptionType.TEXT
    default: Any = None
    unit: str | None = None
    minimum: float | None = None
    maximum: float | None = None
    choices: Mapping[str, str | None] | None = None
    ignore_case: bool = False
    secret: bool = False
    inherited: bool = False
    old_names: tuple[str, ...] = ()
    example: str | None = None


def option(
    default: Any = MISSING,
    *,
    help: str,  # noqa: A002 - what oslo.config and argparse call it
    default_factory: Callable[[], Any] | None = None,
    unset: str | None = None,
    secret: bool = False,
    **facts: Any,
) -> Any:
    """A field with a default that operators can set; for one without a default see `declared`.

    ``unset``: what stands in for the option while it is unset, where the field's default is for constructors alone.
    ``facts``: further arguments of `declared`.
    """
    value = default if default_factory is None else default_factory()
    if unset is not None:
        help, value = f"{help} Unset: {unset}.", None  # noqa: A001
    metadata = declared(default=value, help=help, secret=secret, **facts)
    if default_factory is not None:
        return dataclasses.field(default_factory=default_factory, repr=not secret, metadata=metadata)
    return dataclasses.field(default=default, repr=not secret, metadata=metadata)


def declared(*, name: str = "", type: OptionType | None = None, **facts: Any) -> Mapping[str, Any]:  # noqa: A002
    """The metadata of a field that constructors must be given: ``field(metadata=declared(help=...))``.

    ``name``: the option's, where the field has another. ``type``: if the field's annotation does not imply it.
    ``facts``: further fields of `Option`. The field of a secret also needs ``repr=False``.
    """
    return MappingProxyType({_OPTION: {"name": name, "type": type, **facts}})


def made_of(*parts: Option | type) -> Mapping[str, Any]:
    """The metadata of a field that its reader makes of these options, and of those that these classes declare."""
    return MappingProxyType({_PARTS: parts})


def options_of(settings: type, *names: str) -> tuple[Option, ...]:
    """What this class declares, in the order of its fields; with ``names``, these fields alone."""
    hints = typing.get_type_hints(settings)
    found: list[Option] = []
    for field in dataclasses.fields(settings):
        if names and field.name not in names:
            continue
        for part in field.metadata.get(_PARTS, ()):
            found += [part] if isinstance(part, Option) else options_of(part)
        own = option_of(field, hints[field.name])
        found += [own] if own is not None else []
    return tuple(found)


def option_of(field: dataclasses.Field[Any], annotation: Any) -> Option | None:
    """The option that one field declares; ``None``: it is not an option, or is made of several."""
    facts = field.metadata.get(_OPTION)
    if facts is None:
        return None
    return Option(**{**facts, "name": facts["name"] or field.name, "type": facts["type"] or _type_of(annotation)})


def without_default(option: Option) -> Option:
    """The same option where ``None`` says that it was not set."""
    return replace(option, default=None, example=None)


def _type_of(annotation: Any) -> OptionType:
    if isinstance(annotation, types.UnionType):
        annotation = next(each for each in annotation.__args__ if each is not types.NoneType)
    origin = typing.get_origin(annotation)
    return OptionType.TEXT if origin is typing.Literal else _CONTAINERS.get(origin) or _TYPES[annotation]
