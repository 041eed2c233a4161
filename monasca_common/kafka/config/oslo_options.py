# SPDX-License-Identifier: Apache-2.0
"""A group of declared options, for oslo.config."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from oslo_config import cfg

from monasca_common.kafka.declaration import Option
from monasca_common.kafka.errors import ConfigurationError

KAFKA_GROUP = "kafka"


@dataclass(frozen=True, slots=True)
class OptionGroup:
    """A group of a configuration file, with the options that one room of the package declares in it.

    ``shared``: other libraries may have options in it, so unknown names are not an error.
    ``inherits``: an inherited option that is unset in it is read from ``[kafka]``.
    ``removed``: names that files must not have in it, each with what decides instead.
    ``old``: names without effect that files of the old services have in it, which is logged and not an error.
    """

    name: str
    options: tuple[Option, ...]
    shared: bool = False
    old: frozenset[str] = frozenset()
    removed: Mapping[str, str] = field(default_factory=dict)

    @property
    def inherits(self) -> bool:
        return self.name != KAFKA_GROUP and any(each.inherited for each in self.options)

    def oslo_options(self) -> list[cfg.Opt]:
        """The options for oslo.config; an inherited option has no default of its own."""
        return [(_inheriting(each) if self.inherits and each.inherited else each).oslo() for each in self.options]

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


def with_defaults(options: Iterable[Option], defaults: Mapping[str, Any]) -> tuple[Option, ...]:
    """The same options with other defaults, by name."""
    return tuple(replace(each, default=defaults.get(each.name, each.default)) for each in options)


def _inheriting(declared: Option) -> Option:
    """The same option where ``None`` says that it was not set."""
    return replace(declared, default=None, example=None, help=f"{declared.help} Inherited from [{KAFKA_GROUP}].")
