# SPDX-License-Identifier: Apache-2.0
"""Declares each option once, as a field of a frozen settings class.

`option` creates a field from an option's help, bounds, unit, secrecy, former names and librdkafka names. `declared` is
for fields without a default, and `made_of` is for fields that several options define. `options_of` collects the
declarations of a class. `monasca_common.kafka.config` registers and reads them; constructors of settings do not need
that package.
"""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass
from types import MappingProxyType
from typing import Any

from oslo_config import cfg

_OPTION, _PARTS = "option", "parts"
_LONE_DOLLAR = re.compile(r"(?<!\\)\$")


class _LiteralDollars:
    """An option whose value may contain a literal ``$``, such as a secret; write it as ``$$`` in a configuration file.

    Otherwise oslo.config silently replaces ``$name`` with the value of that option, or raises an error that quotes it.
    """

    def _get_from_namespace(self, namespace: Any, group_name: str | None) -> tuple[Any, Any]:
        value, location = super()._get_from_namespace(namespace, group_name)  # type: ignore[misc]
        for text in value if isinstance(value, list) else [value]:
            if _LONE_DOLLAR.search(text.replace("$$", "")):
                raise ValueError("a $ in its value must be written $$")
        return value, location


class LiteralOpt(_LiteralDollars, cfg.StrOpt):
    """Text in which every ``$`` is literal."""


class LinesOpt(_LiteralDollars, cfg.MultiStrOpt):
    """One ``name=value`` per line: values can contain commas, which would separate the entries of a dictionary
    option."""


_TYPES = {bool: cfg.BoolOpt, int: cfg.IntOpt, float: cfg.FloatOpt, str: cfg.StrOpt}
_UNITS = {"_seconds": "seconds", "_ms": "milliseconds", "_bytes": "bytes", "_messages": "messages"}
_CONTAINERS = {tuple: cfg.ListOpt, frozenset: cfg.ListOpt, Mapping: LinesOpt}


@dataclass(frozen=True, slots=True)
class Option:
    """One option. ``default`` is the value if the option is not set; ``None`` means unset.

    ``inherited``: whether the value of ``[kafka]`` applies if a consumer's group does not set the option.
    ``old_names``: former names in the same group, or ``group.name``.
    ``librdkafka``: the names of the librdkafka option that this option sets.
    """

    name: str
    help: str
    type: type[cfg.Opt] = cfg.StrOpt
    default: Any = None
    unit: str | None = None
    minimum: float | None = None
    maximum: float | None = None
    choices: Mapping[str, str | None] | None = None
    ignore_case: bool = False
    secret: bool = False
    inherited: bool = False
    old_names: tuple[str, ...] = ()
    librdkafka: tuple[str, ...] = ()
    example: str | None = None

    def oslo(self) -> cfg.Opt:
        """Return the option for oslo.config. A secret must not have bounds, because oslo.config's errors quote it."""
        make = LiteralOpt if self.secret and self.type is cfg.StrOpt else self.type
        limits: dict[str, Any] = {}
        if self.choices is not None:
            limits = {"choices": list(self.choices.items())} | ({"ignore_case": True} if self.ignore_case else {})
        elif self.minimum is not None or self.maximum is not None:
            limits = {"min": self.minimum, "max": self.maximum}
        return make(
            self.name,
            default=list(self.default) if isinstance(self.default, tuple | frozenset | Mapping) else self.default,
            help=self.help + (f" Unit: {self.unit}." if self.unit else ""),
            secret=self.secret,
            sample_default=self.example,
            deprecated_opts=[_deprecated(name) for name in self.old_names],
            **limits,
        )


def option(
    default: Any = MISSING,
    *,
    help: str,  # noqa: A002 - the name in oslo.config and argparse
    default_factory: Callable[[], Any] | None = None,
    unset: str | None = None,
    secret: bool = False,
    **facts: Any,
) -> Any:
    """Declare a field with a default that operators can set; for a field without a default see `declared`. ``unset``:
    describes the value of an unset option if the field's default is only for constructors. ``facts``: other arguments
    of `declared`.
    """
    value = default if default_factory is None else default_factory()
    if unset is not None:
        help, value = f"{help} Unset: {unset}.", None  # noqa: A001
    metadata = declared(default=value, help=help, secret=secret, **facts)
    if default_factory is not None:
        return dataclasses.field(default_factory=default_factory, repr=not secret, metadata=metadata)
    return dataclasses.field(default=default, repr=not secret, metadata=metadata)


def declared(**facts: Any) -> Mapping[str, Any]:
    """Return the metadata of a field that constructors must set: ``field(metadata=declared(help=...))``.

    ``facts``: fields of `Option`; the name and type default to those of the field, and the unit follows from the end
    of the name. The field of a secret also needs ``repr=False``.
    """
    return MappingProxyType({_OPTION: facts})


def made_of(*parts: Option | type) -> Mapping[str, Any]:
    """Return the metadata of a field whose reader combines these options and the options that these classes declare."""
    return MappingProxyType({_PARTS: parts})


def options_of(settings: type, *names: str) -> tuple[Option, ...]:
    """Return the options that this class declares, in the order of its fields. ``names``: include only these fields."""
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
    """Return the option that a field declares, or ``None`` if it is not an option or combines several options."""
    facts = field.metadata.get(_OPTION)
    if facts is None:
        return None
    facts = {"name": field.name, **facts}
    facts["type"] = facts.get("type") or _type_of(annotation)
    if facts["type"] in (cfg.IntOpt, cfg.FloatOpt):
        facts.setdefault("unit", next((unit for end, unit in _UNITS.items() if facts["name"].endswith(end)), None))
    return Option(**facts)


def _type_of(annotation: Any) -> type[cfg.Opt]:
    if isinstance(annotation, types.UnionType):
        annotation = next(each for each in annotation.__args__ if each is not types.NoneType)
    origin = typing.get_origin(annotation)
    return cfg.StrOpt if origin is typing.Literal else _CONTAINERS.get(origin) or _TYPES[annotation]


def _deprecated(name: str) -> cfg.DeprecatedOpt:
    group, dot, old = name.rpartition(".")
    return cfg.DeprecatedOpt(old, group=group if dot else None)
