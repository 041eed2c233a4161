# SPDX-License-Identifier: Apache-2.0
"""Plugins by the names that configuration has for them: entry points, never dotted paths."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
from typing import Any

from stevedore import driver
from stevedore.exception import NoMatches

from monasca_common.kafka.errors import ConfigurationError


@functools.lru_cache
def entry_point(namespace: str, name: str, *, option: str) -> Any:
    """What is installed under ``name``; loaded once. ``option`` is where an operator wrote the name.

    Raises `ConfigurationError`, which lists the known names.
    """
    manager: Any = None
    broken: list[BaseException] = []
    # stevedore logs a name that is not there; what is raised here says more.
    if name in importlib.metadata.entry_points(group=namespace).names:
        with contextlib.suppress(NoMatches):
            manager = driver.DriverManager(
                namespace, name, on_load_failure_callback=lambda _manager, _plugin, error: broken.append(error)
            )
    if manager is None:
        raise _no_plugin(namespace, name, option, broken) from (broken[0] if broken else None)
    return manager.driver


def _no_plugin(namespace: str, name: str, option: str, broken: list[BaseException]) -> ConfigurationError:
    if broken:
        return ConfigurationError(
            f"{option}={name}: the plugin cannot be loaded ({broken[0]}): install what it needs, or use another"
        )
    known = sorted(importlib.metadata.entry_points(group=namespace).names)
    return ConfigurationError(
        f"{option}={name} is not known: use one of {', '.join(known) or '(none is installed)'}, or install a package "
        f"that offers it as an entry point of {namespace}"
    )
