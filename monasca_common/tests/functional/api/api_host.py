# SPDX-License-Identifier: Apache-2.0
"""One of several API hosts, with a fixed clock: ``python -m … <ms since the epoch> --config-file F``."""

import functools
import sys
from unittest import mock
from wsgiref.simple_server import WSGIRequestHandler, make_server

from monasca_common.api import service
from monasca_common.api.settings import read_configuration


class QuietHandler(WSGIRequestHandler):
    def log_message(self, *_arguments):
        pass


def main(now_ms, configuration):
    make_app = functools.partial(service.make_app, now=lambda: now_ms / 1000)
    mock.patch.object(service, "make_app", make_app).start()
    opened = service.Service(read_configuration([configuration]))
    make_server("127.0.0.1", opened.settings.port, opened.app, handler_class=QuietHandler).serve_forever()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[3])
