# SPDX-License-Identifier: Apache-2.0
"""The clients in C, which use the same librdkafka, but faster. Installing them from source needs a C compiler."""

from __future__ import annotations

import functools
import importlib
import sysconfig

from confluent_kafka import libversion

from monasca_common.kafka.settings import ProducerSettings

_INTERFACE = 4  # of the extension module: the same number as in client.h
_OLDEST_LIBRDKAFKA = 0x02100000  # 2.16.0, which requirements.txt installs


@functools.cache
def reason() -> str | None:
    """Return the reason why this installation cannot use the native client, or ``None``."""
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return "it is not built for free-threaded Python"
    version, number = libversion()
    if number < _OLDEST_LIBRDKAFKA:
        return f"it needs librdkafka 2.16 or newer, and confluent-kafka uses {version}"
    try:
        extension = importlib.import_module(f"{__name__}._librdkafka")
    except ModuleNotFoundError:
        return "its extension module was not built: it needs a C compiler and Python's headers"
    except ImportError as error:
        return f"its extension module cannot be loaded: {error}"
    built = getattr(extension, "INTERFACE", 1)
    if built != _INTERFACE:
        return (
            f"its extension module was built from another version of this package (its interface is {built}, not "
            f"{_INTERFACE}): install the package again, in a source tree with `pip install -e .`"
        )
    return None


def native_can(settings: ProducerSettings) -> str | None:
    """Return the reason why the native client does not support these settings, or ``None``."""
    unavailable = reason()
    if unavailable is not None:
        return unavailable
    return None if settings.transactional_id is None else "it has no transactions"
