# SPDX-License-Identifier: Apache-2.0
"""Services with several processes: the plan of the next worker, a worker's threads, and the parent that forks
workers."""

from __future__ import annotations

import logging
import multiprocessing
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Protocol

import cotyledon
from oslo_config import cfg

from monasca_common.kafka.settings import ConsumerSettings
from monasca_common.runtime.shutdown import grace_seconds

LOG = logging.getLogger(__name__)


class Plan(ABC):
    """The configuration of the next worker process. Only the parent changes it; a child keeps the configuration from
    its fork."""

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        """Raises the errors of `read`."""
        self._conf = conf
        self.read(conf)

    @abstractmethod
    def read(self, conf: cfg.ConfigOpts) -> None:
        """Read all options of ``conf``. If this raises an error, no option changes."""

    def reload(self) -> None:
        """Reload the configuration. A refused configuration changes nothing."""
        try:
            if self._conf.reload_config_files():
                self.read(self._conf)
        except Exception as error:
            LOG.error("reload failed; keeping the current configuration: %s", error)


class Runnable(Protocol):
    """A part of a service: `run` returns after another thread calls `stop`."""

    def run(self) -> object: ...

    def stop(self) -> object: ...


class ServiceThreads:
    """Runs each part in its own thread."""

    def __init__(self, parts: Iterable[Runnable]) -> None:
        self._parts = tuple(parts)
        self._threads = [threading.Thread(target=part.run, daemon=True) for part in self._parts]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self, seconds: float | None = None) -> None:
        """Stop all parts concurrently, and wait for them, at most for ``seconds``."""
        deadline = None if seconds is None else time.monotonic() + seconds
        stoppers = [threading.Thread(target=part.stop, daemon=True) for part in self._parts]
        for thread in stoppers:
            thread.start()
        for thread in (*stoppers, *self._threads):
            if thread.ident is not None:
                thread.join(None if deadline is None else max(0.0, deadline - time.monotonic()))


def service_manager(plan: Plan, consumers: Iterable[ConsumerSettings]) -> cotyledon.ServiceManager:
    """Create the parent of the workers, which forks them and replaces workers that exit. On SIGHUP it reloads ``plan``
    and replaces all. ``consumers``: the settings of the workers' consumers."""
    manager = cotyledon.ServiceManager(
        graceful_shutdown_timeout=grace_seconds(consumers), mp_context=multiprocessing.get_context("fork")
    )
    manager.register_hooks(on_reload=plan.reload)
    return manager
