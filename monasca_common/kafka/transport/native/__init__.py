# SPDX-License-Identifier: Apache-2.0
"""The clients in C, which use the same librdkafka faster. Installing them from source needs a C compiler."""

from __future__ import annotations

import functools
import importlib
import sysconfig

from monasca_common.kafka.settings import ProducerSettings


@functools.cache
def reason() -> str | None:
    """Return the reason why this installation cannot use the native client, or ``None``."""
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
    """Return the reason why the native client does not support these settings, or ``None``."""
    unavailable = reason()
    if unavailable is not None:
        return unavailable
    return None if settings.transactional_id is None else "it has no transactions"
