# SPDX-License-Identifier: Apache-2.0
"""Reads configuration files and checks their names, because oslo.config ignores misspelt options."""

from __future__ import annotations

import difflib
import logging
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

from oslo_config import cfg

from monasca_common.kafka.config import legacy
from monasca_common.kafka.config.groups import KAFKA_GROUP
from monasca_common.kafka.errors import ConfigurationError

LOG = logging.getLogger(__name__)

# The text of oslo.config's error consists of a printed tuple and the rule.
_REFUSED_VALUE = re.compile(
    r"option (?P<name>\S+) from LocationInfo\(.*detail='(?P<place>.*?)'\) is not valid: (?P<rule>.*)", re.DOTALL
)
_ENVIRONMENT = re.compile(r"OS_KAFKA\w*?__\w+")

# Warnings that this process has logged, so that the next client or a reload does not repeat them. (oslo.log also logs
# replaced names once per process.)
_warned: set[str] = set()


def read(conf: cfg.ConfigOpts, arguments: Sequence[str], **names: Any) -> None:
    """Call ``conf(arguments, **names)``; convert its errors to a `ConfigurationError` that quotes no line of a file."""
    # The error is raised outside the except block, because otherwise the original error, which can quote a line with a
    # password, would be its context.
    refused = None
    try:
        conf(arguments, **names)
    except (cfg.Error, ValueError, OSError) as error:
        refused = _unreadable(error)
    if refused is not None:
        raise refused


def check_parsed(conf: cfg.ConfigOpts) -> None:
    """Raise `ConfigurationError` if ``conf()`` was not called, because every option would have its default."""
    if conf._namespace is None:
        raise ConfigurationError(
            "the configuration was not read yet, so every option would be its default: call conf(args, project=...) "
            "before a producer or consumer is loaded from it"
        )


def check_removed(conf: cfg.ConfigOpts, group: str, removed: Mapping[str, str]) -> None:
    """Raise `ConfigurationError` for removed names in files or the environment. ``removed``: the reason by name."""
    found = [
        f"{name} in group [{group}] has no effect: {removed[name]}"
        for name in sorted(names_in_files(conf)[group.lower()] & removed.keys())
    ]
    variables = {f"OS_{group.upper()}__{name.upper()}": decides for name, decides in sorted(removed.items())}
    found += [
        f"{variable} in the environment has no effect: {decides}"
        for variable, decides in variables.items()
        if variable in os.environ
    ]
    if found:
        raise ConfigurationError(f"{'; '.join(found)}; remove {'it' if len(found) == 1 else 'them'}")


def check_names(conf: cfg.ConfigOpts, group: str) -> None:
    """Check the names that ``[kafka]`` and ``[<group>]`` have in files and in the environment.

    Logs old names that have no effect. Raises `ConfigurationError` for a name that never existed.
    """
    for name in dict.fromkeys((KAFKA_GROUP, group.lower())):
        old_options = tuple(old for old in legacy.OLD_OPTIONS if old.consumers or name == KAFKA_GROUP)
        log_old_group(conf, legacy.OldGroup(name, None, old_options))
        check_group(conf, name, old={old.name for old in old_options})
    for variable in filter(_ENVIRONMENT.fullmatch, os.environ):
        _check_variable(conf, variable)
    for old in legacy.OLD_GROUPS:
        log_old_group(conf, old)


def check_group(conf: cfg.ConfigOpts, group: str, *, old: Set[str] = frozenset()) -> None:
    """Check the option names of one group in files. Raises `ConfigurationError` for a name that is neither registered
    nor ``old``."""
    registered = _registered(conf)[group.lower()]
    for option in sorted(names_in_files(conf)[group.lower()] - registered - old):
        raise ConfigurationError(
            f"[{group}] has an unknown option {option!r}{_suggestion(option, registered)}: correct its name "
            "or remove it"
        )


def log_old_group(conf: cfg.ConfigOpts, group: legacy.OldGroup) -> None:
    """Log, once, why each old option that files set in a group is ignored. Registered options are omitted, because a
    service reads them.
    """
    names = names_in_files(conf)[group.name] - _registered(conf)[group.name.lower()]
    for old in group.options:
        if old.name in names and old.action is legacy.Action.IGNORED:
            warn_once(f"[{group.name}] {old.name} is ignored: {old.note}")
    rest = sorted(names - {old.name for old in group.options})
    if rest and group.note is not None:
        warn_once(f"[{group.name}] is ignored ({', '.join(rest)}): {group.note}")


def is_set(conf: cfg.ConfigOpts, group: str, name: str) -> bool:
    """Return whether this registered option is set. Do not call it for secrets, because the errors of oslo.config quote
    values."""
    location = conf.get_location(name, group)
    return location is not None and location.location not in (cfg.Locations.opt_default, cfg.Locations.set_default)


def broken_rule(error: Exception) -> str:
    """Return the reason why oslo.config refuses a value, and the place of the value, worded for operators."""
    found = _REFUSED_VALUE.search(str(error))
    return f"{found['rule']} ({found['name']} in {found['place']})" if found else str(error)


def _unreadable(error: Exception) -> ConfigurationError:
    if isinstance(error, cfg.ConfigFileParseError):  # the error text quotes the line
        number = getattr(error.__context__, "lineno", None)
        place = error.config_file if number is None else f"line {number} of {error.config_file}"
        return ConfigurationError(f"{place} is neither [group] nor name = value: correct it")
    return ConfigurationError(f"the configuration cannot be read; correct it or --config-file: {error}")


def warn_once(text: str) -> None:
    """Log a warning, unless this process has already logged it."""
    if text not in _warned:
        _warned.add(text)
        LOG.warning(text)


def _check_variable(conf: cfg.ConfigOpts, variable: str) -> None:
    """Check a name in the environment. oslo.config reads ``OS_<GROUP>__<NAME>``, with current option names only."""
    group, _, option = variable.removeprefix("OS_").lower().partition("__")
    if group in conf and option not in conf[group]:
        raise ConfigurationError(
            f"{variable} in the environment: [{group}] has no option {option!r}{_suggestion(option, conf[group])}: "
            "correct the variable's name or remove it"
        )


def names_in_files(conf: cfg.ConfigOpts) -> Mapping[str, set[str]]:
    """Return the option names in files by group; a group without options is empty."""
    # oslo.config has no public interface for the names in its files.
    names: dict[str, set[str]] = defaultdict(set)
    for sections in conf._namespace._normalized if conf._namespace else ():
        for section, options in sections.items():
            names[section].update(options)
    return names


def _registered(conf: cfg.ConfigOpts) -> Mapping[str, set[str]]:
    """Return the registered names by group, including former names and other libraries' options."""
    names: dict[str, set[str]] = defaultdict(set)
    for info, group in conf._all_opt_infos():
        option = info["opt"]
        home = group.name.lower() if group else "default"
        names[home] |= {option.dest, option.name}
        for former in option.deprecated_opts:
            names[(former.group or home).lower()].add(former.name or option.dest)
    return names


def _suggestion(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, sorted(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""
