# SPDX-License-Identifier: Apache-2.0
"""Loads the configured storage driver."""

from __future__ import annotations

import logging

from oslo_config import cfg

from monasca_common.kafka import entry_point
from monasca_common.kafka.clock import Clock, SystemClock
from monasca_common.kafka.errors import ConfigurationError
from monasca_common.storage.base import Capability, Storage
from monasca_common.storage.errors import StorageUnavailable
from monasca_common.storage.settings import StorageSettings, check_dialect, storage_settings

LOG = logging.getLogger(__name__)

DRIVERS = "monasca_common.storage"


def load_storage(conf: cfg.ConfigOpts) -> Storage:
    """Return the storage that ``[storage]`` and ``[database]`` configure.

    This does not connect. Raises `ConfigurationError`, which names the option.
    """
    return open_storage(storage_settings(conf))


def open_storage(settings: StorageSettings, *, clock: Clock | None = None) -> Storage:
    """Return the configured driver. Raises `ConfigurationError` for an unknown driver, a URL of another driver, or a
    URL that the driver refuses."""
    return driver_of(settings)(settings, clock=clock or SystemClock())  # type: ignore[call-arg]


def driver_of(settings: StorageSettings) -> type[Storage]:
    """Return the driver's class. Raises `ConfigurationError` for an unknown driver, or a URL of another driver."""
    driver: type[Storage] = entry_point(DRIVERS, settings.driver, option="driver in group [storage]")
    check_dialect(settings)
    return driver


def check_processes(group: str, processes: int, settings: StorageSettings, storage: Storage) -> None:
    """Raise `ConfigurationError` for several processes if only one process can write to the database."""
    if processes > 1 and Capability.MANY_WRITERS not in storage.capabilities:
        raise ConfigurationError(
            f"num_processors in group [{group}] is {processes}, but storage driver {settings.driver!r} permits one "
            "writing process: set it to 1, so that threads share the work, or use another driver"
        )


def check_storage(storage: Storage) -> None:
    """Raise `StorageError`, for example `SchemaMismatch`, unless the database is only unavailable."""
    try:
        storage.open_writer().close()
    except StorageUnavailable as error:
        LOG.warning("the database is unavailable; waiting for it: %s", error)
