# SPDX-License-Identifier: Apache-2.0
"""Loads the storage driver that the configuration names."""

from __future__ import annotations

from oslo_config import cfg

from monasca_common.kafka import entry_point
from monasca_common.kafka.clock import Clock, SystemClock
from monasca_common.storage.base import Storage
from monasca_common.storage.settings import StorageSettings, check_dialect, storage_settings

DRIVERS = "monasca_common.storage"


def load_storage(conf: cfg.ConfigOpts) -> Storage:
    """The storage that ``[storage]`` and ``[database]`` describe; registers the options that it reads.

    It does not connect. Raises `ConfigurationError`, which names the option.
    """
    return open_storage(storage_settings(conf))


def open_storage(settings: StorageSettings, *, clock: Clock | None = None) -> Storage:
    """The driver that the settings name. Raises `ConfigurationError` for an unknown driver, or a URL of another one, or
    one that the driver refuses."""
    return driver_of(settings)(settings, clock=clock or SystemClock())  # type: ignore[call-arg]


def driver_of(settings: StorageSettings) -> type[Storage]:
    """The driver's class, for what it can do. Raises `ConfigurationError` for an unknown one, or a URL of another."""
    driver: type[Storage] = entry_point(DRIVERS, settings.driver, option="driver in group [storage]")
    check_dialect(settings)
    return driver
