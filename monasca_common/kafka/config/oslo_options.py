# SPDX-License-Identifier: Apache-2.0
"""Converts declared options to options of oslo.config, in groups."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from oslo_config import cfg

from monasca_common.kafka.declaration import Option, OptionType, without_default
from monasca_common.kafka.errors import ConfigurationError

KAFKA_GROUP = "kafka"

_LONE_DOLLAR = re.compile(r"(?<!\\)\$")


class _LiteralDollars:
    """An option whose ``$`` is literal, such as a secret: a file must double it.

    Otherwise oslo.config replaces ``$name`` by an option of that name silently, or raises an error that quotes it.
    """

    def _get_from_namespace(self, namespace: Any, group_name: str | None) -> tuple[Any, Any]:
        value, location = super()._get_from_namespace(namespace, group_name)  # type: ignore[misc]
        for text in value if isinstance(value, list) else [value]:
            if _LONE_DOLLAR.search(text.replace("$$", "")):
                raise ValueError("a $ in it must be written $$")
        return value, location


class _LiteralOpt(_LiteralDollars, cfg.StrOpt):
    """Text in which every ``$`` is literal."""


class _LiteralLinesOpt(_LiteralDollars, cfg.MultiStrOpt):
    """One ``name=value`` per line, because a dictionary option breaks at a comma in a value."""


@dataclass(frozen=True, slots=True)
class OptionGroup:
    """A group of a configuration file, with the options that one room of the package declares in it.

    ``shared``: other libraries may have options in it, so unknown names are not an error.
    ``inherits``: an inherited option that is unset in it is read from ``[kafka]``.
    ``old``: names without effect that files of the old services have in it, which is logged and not an error.
    """

    name: str
    options: tuple[Option, ...]
    shared: bool = False
    old: frozenset[str] = frozenset()

    @property
    def inherits(self) -> bool:
        return self.name != KAFKA_GROUP and any(each.inherited for each in self.options)

    def oslo_options(self) -> list[cfg.Opt]:
        """The options for oslo.config; an inherited option has no default of its own."""
        return [_oslo_option(_heir(each) if self.inherits and each.inherited else each) for each in self.options]

    def listed(self) -> tuple[str, list[cfg.Opt]]:
        """The group as an element of what an entry point in ``oslo.config.opts`` returns."""
        return self.name, self.oslo_options()

    def register(self, conf: cfg.ConfigOpts) -> None:
        """Register the options; doing so again changes nothing.

        Raises `ConfigurationError` if the service registered another option under one of the names.
        """
        clash = None
        try:
            conf.register_opts(self.oslo_options(), group=self.name)
        except cfg.DuplicateOptError as error:
            clash = error.opt_name
        if clash:
            raise ConfigurationError(
                f"option {clash!r} in group [{self.name}] is registered twice, differently: the group belongs to "
                "monasca_common, so give the service's own option another name or group"
            )

    def find(self, name: str) -> Option:
        return next(each for each in self.options if each.name == name)


def with_defaults(options: Iterable[Option], defaults: Mapping[str, Any]) -> tuple[Option, ...]:
    """The same options with other defaults, by name."""
    return tuple(replace(each, default=defaults.get(each.name, each.default)) for each in options)


def _heir(declared: Option) -> Option:
    return replace(without_default(declared), help=f"{declared.help} Inherited from [{KAFKA_GROUP}].")


def _oslo_option(declared: Option) -> cfg.Opt:
    make = _MAKERS[declared.type]
    if declared.secret and declared.type is OptionType.TEXT:
        make = _MAKERS[OptionType.LITERAL_TEXT]
    unit = f" Unit: {declared.unit}." if declared.unit else ""
    return make(
        declared.name,
        default=_default(declared),
        help=declared.help + unit,
        secret=declared.secret,
        sample_default=declared.example,
        deprecated_opts=[_deprecated(name) for name in declared.old_names],
        **_limits(declared),
    )


_MAKERS: Mapping[OptionType, type[cfg.Opt]] = {
    OptionType.TEXT: cfg.StrOpt,
    OptionType.LITERAL_TEXT: _LiteralOpt,
    OptionType.INTEGER: cfg.IntOpt,
    OptionType.NUMBER: cfg.FloatOpt,
    OptionType.SWITCH: cfg.BoolOpt,
    OptionType.PORT: cfg.PortOpt,
    OptionType.LIST: cfg.ListOpt,
    OptionType.LINES: _LiteralLinesOpt,
}


def _default(declared: Option) -> Any:
    if declared.type in (OptionType.LIST, OptionType.LINES) and declared.default is not None:
        return list(declared.default)
    return declared.default


def _deprecated(name: str) -> cfg.DeprecatedOpt:
    group, dot, old = name.rpartition(".")
    return cfg.DeprecatedOpt(old, group=group if dot else None)


def _limits(declared: Option) -> dict[str, Any]:
    """The bounds of an option. A secret has none, because oslo.config's error would print the value."""
    if declared.choices is not None:
        limits: dict[str, Any] = {"choices": list(declared.choices.items())}
        return limits | {"ignore_case": True} if declared.ignore_case else limits
    if declared.minimum is None and declared.maximum is None:
        return {}
    return {"min": declared.minimum, "max": declared.maximum}
