# SPDX-License-Identifier: Apache-2.0
"""The clients in C: faster, for the same librdkafka. The installation of the package needs a C compiler for them."""

from __future__ import annotations

import functools
import importlib
import sysconfig

from monasca_common.kafka.settings import ProducerSettings


@functools.cache
def reason() -> str | None:
    """Return why this installation cannot use the native client; ``None``: it can."""
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return "it is not built for free-threaded Python"
    try:
        importlib.import_module(f"{__name__}._librdkafka")
    except ModuleNotFoundError:
        return "its extension module was not built: it needs a C compiler and Python's headers"
    except ImportError as error:
        return f"its extension module cannot be loaded: {error}"
    return None


def native_can(settings: ProducerSettings) -> str | None:
    """Return why the native client cannot serve these settings; ``None``: it can."""
    unavailable = reason()
    if unavailable is not None:
        return unavailable
    return None if settings.transactional_id is None else "it has no transactions"
