# SPDX-License-Identifier: Apache-2.0
"""Reads a group of options, with inheritance, and checks unknown names, refused values and secrets. All services use it
for their groups. Each error is a `ConfigurationError` that names the option, its group, the rule and the remedy, and
quotes no secret.
"""

from __future__ import annotations

import dataclasses
import typing
from typing import Any, TypeVar

from oslo_config import cfg

from monasca_common.kafka.config import config_file
from monasca_common.kafka.config.groups import KAFKA_GROUP, OptionGroup, group_of
from monasca_common.kafka.declaration import Option, option_of
from monasca_common.kafka.errors import ConfigurationError

_Settings = TypeVar("_Settings")


class GroupReader:
    """Registers the options of a group, checks the names in files, and reads values by name.

    A group that inherits reads unset inherited options, and options that only ``[kafka]`` has, from ``[kafka]``.
    Raises `ConfigurationError` for an unknown name, and if ``conf()`` was not called.
    """

    def __init__(self, conf: cfg.ConfigOpts, group: OptionGroup) -> None:
        self.group = group.name
        self._conf = conf
        self._options = {each.name: each for each in group.options}
        self._kafka: dict[str, Option] = {}
        group.register(conf)
        removed = {group.name: group.removed}
        if group.inherits or group.name == KAFKA_GROUP:
            kafka = group_of(KAFKA_GROUP)
            kafka.register(conf)
            self._kafka = {each.name: each for each in kafka.options}
            removed = {KAFKA_GROUP: kafka.removed, **removed}
        config_file.check_parsed(conf)
        for name, decisions in removed.items():
            config_file.check_removed(conf, name, decisions)
        if self._kafka:
            config_file.check_names(conf, group.name)
        elif not group.shared:
            config_file.check_group(conf, group.name, old=group.old)

    def __getitem__(self, name: str) -> Any:
        """Return the value. Raises `ConfigurationError`, and `KeyError` for an option that was not declared."""
        declared = self._options.get(name)
        if declared is None:
            return self._read(KAFKA_GROUP, self._kafka[name])
        value = self.own(name)
        if value is None and self._kafka and declared.inherited:
            return self._read(KAFKA_GROUP, declared)
        return value

    def own(self, name: str) -> Any:
        """Return the group's value, without inheritance."""
        return self._read(self.group, self._options[name])

    def is_set(self, name: str) -> bool:
        """Return whether an operator or a program has set this option in the group. Do not call it for secrets."""
        return config_file.is_set(self._conf, self.group, name)

    def settings(self, made: type[_Settings], **given: Any) -> _Settings:
        """Create an object of the class ``made`` from its declared options in this group; ``given``: its other
        fields."""
        hints = typing.get_type_hints(made)
        for field in dataclasses.fields(made):  # type: ignore[arg-type]  # each is a dataclass
            declared = option_of(field, hints[field.name])
            if declared is not None and field.name not in given:
                given[field.name] = _converted(self[declared.name], declared, hints[field.name])
        return made(**given)

    def error(self, name: str, rule: str) -> ConfigurationError:
        return ConfigurationError(f"{name} in group [{self.group}] {rule}")

    def _read(self, group: str, declared: Option) -> Any:
        # The error is raised outside the except block, because otherwise the original error, which can quote the value,
        # would be its context.
        refused = None
        try:
            return getattr(self._conf[group], declared.name)
        except (cfg.Error, ValueError) as error:
            refused = _refusal(group, declared, error)
        raise refused


def _refusal(group: str, declared: Option, error: Exception) -> ConfigurationError:
    rule = f"is refused; correct it: {config_file.broken_rule(error)}"
    if declared.secret:
        rule = "cannot be read: a $ in its value must be written $$ (the value is a secret and is not shown)"
    return ConfigurationError(f"{declared.name} in group [{group}] {rule}")


def _converted(value: Any, declared: Option, annotation: Any) -> Any:
    container = typing.get_origin(annotation)
    if container in (tuple, frozenset) and value is not None:
        return container(value)
    if isinstance(value, str) and declared.default is None:
        return value or None  # an empty string counts as unset
    return value
