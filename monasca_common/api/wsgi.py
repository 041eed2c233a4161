# SPDX-License-Identifier: Apache-2.0
"""``monasca_common.api.wsgi:application``, for any WSGI server.

The first request opens the service in the process that serves the request, so a server can import this module and then
fork. The environment variable ``MONASCA_API_CONFIG_FILES`` names configuration files, separated by colons; by default
oslo.config finds ``monasca-api.conf`` (in /etc/monasca and other folders). The server needs 12 threads plus 3.25 times
``[api] max_in_flight``.
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
from monasca_common.runtime.logs import register_logging, start_logging


class Application:
    """A WSGI application. It is thread-safe; a forked child opens its own service."""

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
                files = os.environ.get(CONFIG_FILES, "").split(os.pathsep)
                read_configuration([path for path in files if path], conf)
                start_logging(conf)
                self._service = Service(conf)
                atexit.register(self._service.close)
            return self._service

    def _forget(self) -> None:
        # The child neither closes the parent's service nor uses its lock, which a thread of the parent may hold.
        if self._service is not None:
            atexit.unregister(self._service.close)
        self._service = None
        self._lock = threading.Lock()


application = Application()
