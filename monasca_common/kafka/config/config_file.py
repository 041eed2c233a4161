# SPDX-License-Identifier: Apache-2.0
"""Reading configuration files, and which names they hold: oslo.config itself ignores a misspelt option."""

from __future__ import annotations

import difflib
import logging
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from oslo_config import cfg

from monasca_common.kafka.config import legacy
from monasca_common.kafka.errors import ConfigurationError
from monasca_common.kafka.options import CONSUMER_GROUPS, KAFKA_GROUP

LOG = logging.getLogger(__name__)

_MISSPELT = 0.85  # likeness of two names, of 1
# What oslo.config says of a value: one of its tuples, printed, and the rule.
_REFUSED_VALUE = re.compile(
    r"option (?P<name>\S+) from LocationInfo\(.*detail='(?P<place>.*?)'\) is not valid: (?P<rule>.*)", re.DOTALL
)
_ENVIRONMENT = re.compile(r"OS_KAFKA\w*?__\w+")


def read(conf: cfg.ConfigOpts, arguments: Sequence[str], **names: Any) -> None:
    """``conf(arguments, **names)``, but all that it raises is a `ConfigurationError` that quotes no line of a file."""
    # Raised outside of the handler: the original error may quote a password's line, and would be its context.
    refused = None
    try:
        conf(arguments, **names)
    except (cfg.Error, ValueError, OSError) as error:
        refused = _unreadable(error)
    if refused is not None:
        raise refused


def check_parsed(conf: cfg.ConfigOpts) -> None:
    """Raise `ConfigurationError` before ``conf()`` was called: every option would silently be its default."""
    if conf._namespace is None:
        raise ConfigurationError(
            "the configuration was not read yet, so every option would be its default: call conf(args, project=...) "
            "before a producer or consumer is loaded from it"
        )


def check_names(conf: cfg.ConfigOpts, group: str) -> None:
    """Look at the names that ``[kafka]`` and ``[<group>]`` have in files and in the environment.

    Old names without effect are logged. Raises `ConfigurationError` for one that nobody ever had.
    """
    in_files, registered = _in_files(conf), _registered(conf)
    for name in dict.fromkeys((KAFKA_GROUP, group.lower())):
        for option in sorted(in_files[name] - registered[name]):
            _check_name(name, option, registered)
    for variable in filter(_ENVIRONMENT.fullmatch, os.environ):
        _check_variable(conf, variable)
    ours = {KAFKA_GROUP, group.lower(), *CONSUMER_GROUPS, *registered}
    for name in sorted(section for section in in_files if section.startswith(KAFKA_GROUP) and section not in ours):
        # A name of its own may be another consumer's, loaded later; one that nearly is a known one is misspelt.
        close = difflib.get_close_matches(name, sorted(ours), n=1, cutoff=_MISSPELT)
        if close:
            LOG.warning("Nobody reads the configuration group [%s] (did you mean %r?)", name, close[0])


def check_group(conf: cfg.ConfigOpts, group: str) -> None:
    """Look at the names that one group has in files: raises `ConfigurationError` for one that nobody registered.

    For the groups of what is built on this layer; `check_names` is for those of producers and consumers.
    """
    registered = _registered(conf)[group.lower()]
    for option in sorted(_in_files(conf)[group.lower()] - registered):
        raise ConfigurationError(
            f"[{group}] has an option {option!r} that nobody reads{_suggestion(option, registered)}: correct its name "
            "or remove it"
        )


def broken_rule(error: Exception) -> str:
    """What oslo.config has against a value, and where that stands, in words for operators."""
    found = _REFUSED_VALUE.search(str(error))
    return f"{found['rule']} ({found['name']} in {found['place']})" if found else str(error)


def _unreadable(error: Exception) -> ConfigurationError:
    if isinstance(error, cfg.ConfigFileParseError):  # its text quotes the line
        number = getattr(error.__context__, "lineno", None)
        place = error.config_file if number is None else f"line {number} of {error.config_file}"
        return ConfigurationError(f"{place} is neither [group] nor name = value: correct it")
    if isinstance(error, (cfg.ConfigFilesNotFoundError, cfg.ConfigFilesPermissionDeniedError)):
        return ConfigurationError(f"{error}: correct --config-file")
    if isinstance(error, OSError):
        return ConfigurationError(f"{error.filename} cannot be read ({error.strerror}): correct --config-file")
    return ConfigurationError(f"the configuration cannot be read: {error}")


def _check_name(group: str, option: str, registered: Mapping[str, set[str]]) -> None:
    old = legacy.find(group, option)
    if old is None and option in registered[KAFKA_GROUP]:
        raise ConfigurationError(
            f"{option} in group [{group}] is the same for all producers and consumers of a configuration: move it to "
            f"[{KAFKA_GROUP}]"
        )
    if old is None:
        raise ConfigurationError(
            f"[{group}] has an option {option!r} that nobody reads{_suggestion(option, registered[group])}: correct "
            "its name or remove it. (A service registers its own options before it loads producers and consumers.)"
        )
    if old.fate is legacy.Fate.IGNORED:
        LOG.warning("[%s] %s is ignored: %s", group, option, old.note)


def _check_variable(conf: cfg.ConfigOpts, variable: str) -> None:
    """oslo.config reads ``OS_<GROUP>__<NAME>``, under the options' names of today alone."""
    group, _, option = variable.removeprefix("OS_").lower().partition("__")
    if group in conf and option not in conf[group]:
        raise ConfigurationError(
            f"{variable} in the environment: [{group}] has no option {option!r}{_suggestion(option, conf[group])}: "
            "correct the variable's name or remove it"
        )


def _in_files(conf: cfg.ConfigOpts) -> Mapping[str, set[str]]:
    # oslo.config has no public way to ask which names its files hold.
    names: dict[str, set[str]] = defaultdict(set)
    for sections in conf._namespace._normalized if conf._namespace else ():
        for section, options in sections.items():
            names[section].update(options)
    return names


def _registered(conf: cfg.ConfigOpts) -> Mapping[str, set[str]]:
    """Names by group, former names and those of other libraries' options included."""
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
