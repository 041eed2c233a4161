# SPDX-License-Identifier: Apache-2.0
"""`load`: loads an attribute by its ``module:attribute`` name, as written in configurations of monasca-api and
monasca-persister.

This library's own plugins are entry points instead (`monasca_common.kafka.entry_point`), which need no import path.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any


class ImportFailed(Exception):
    """The module cannot be imported; the import error, if any, is the ``__cause__``."""


class MissingModule(Exception):
    """The target names no module."""


class MissingMethodOrFunction(Exception):
    """The target names no attribute, or the module has no such attribute."""


def load(target: str) -> Any:
    """Return the attribute that ``target`` names: ``package.module:Class`` or ``package.module:Class.method``.

    Raises `MissingModule`, `MissingMethodOrFunction` or `ImportFailed`. A folder before the module
    (``folder|module:Class``) is refused, because it would change the import path of the whole process.
    """
    if "|" in target:
        raise ImportFailed(
            f"{target!r} names a folder before the module: install the module, or add its folder to PYTHONPATH, and "
            "write package.module:attribute"
        )
    module_name, _, attribute = target.strip().rpartition(":")
    if not module_name:
        raise MissingModule(f"{target!r} names no module: write package.module:attribute")
    if not attribute:
        raise MissingMethodOrFunction(f"{target!r} names nothing within the module: write package.module:attribute")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise ImportFailed(
            f"{module_name!r} of {target!r} cannot be imported: install it, or correct its name ({error})"
        ) from error
    try:
        return functools.reduce(getattr, attribute.split("."), module)
    except AttributeError as error:
        raise MissingMethodOrFunction(f"{target!r}: correct the name after the colon ({error})") from error
