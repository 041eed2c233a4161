# SPDX-License-Identifier: Apache-2.0
"""``monasca_common.api.wsgi:application``, for any WSGI server.

It is made at the first request, by the process that serves it, so that a server may import it and fork afterwards.
Configuration files come from the environment variable ``MONASCA_API_CONFIG_FILES`` (separated by colons), or from
where oslo.config looks for ``monasca-api.conf`` (/etc/monasca and others). The server's own threads bound how many
requests are under way: give it three and a quarter times as many as ``[api] max_in_flight``, and 12 more.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Iterable

from oslo_config import cfg

from monasca_common.api.limits import Environ, StartResponse
from monasca_common.api.service import Service
from monasca_common.api.settings import CONFIG_FILES, read_configuration
from monasca_common.runtime import register_logging, start_logging


class Application:
    """Callable by a WSGI server. Thread-safe; a child of a fork makes its own service."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._service: Service | None = None
        os.register_at_fork(after_in_child=self._forget)

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        service = self._service
        if service is None:
            service = self._opened()
        return service.app(environ, start_response)

    def _opened(self) -> Service:
        with self._lock:
            if self._service is None:
                conf = cfg.ConfigOpts()
                register_logging(conf)
                read_configuration(_named_files(), conf)
                start_logging(conf)
                self._service = Service(conf)
                atexit.register(self._service.close)
            return self._service

    def _forget(self) -> None:
        # The parent's service stays the parent's; its lock may have been held by a thread that is not here.
        if self._service is not None:
            atexit.unregister(self._service.close)
        self._service = None
        self._lock = threading.Lock()


def _named_files() -> list[str] | None:
    return [path for path in os.environ.get(CONFIG_FILES, "").split(os.pathsep) if path] or None


application = Application()
