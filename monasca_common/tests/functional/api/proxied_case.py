# SPDX-License-Identifier: Apache-2.0
"""An API behind a real nginx with the published configuration."""

import http.client
import json
import sys
import time

from monasca_common.tests.functional import nginx
from monasca_common.tests.functional.api.api_case import ApiProcessCase
from monasca_common.tests.waiting import PATIENCE_SECONDS


class ProxiedCase(ApiProcessCase):
    def proxy(self, api, **changes):
        if nginx.program() is None:
            print(nginx.MISSING, file=sys.stderr)  # noqa: T201 - show that the test did not run
            self.skipTest(nginx.MISSING)
        return self.useFixture(nginx.Nginx(api.port, **changes))

    def ask(self, port, method, path, body=None, headers=None):
        """Return status, body and seconds of a response."""
        began = time.monotonic()
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_SECONDS)
        try:
            data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
            headers = {"Content-Type": "application/json", **(headers or {})}
            connection.request(method, path, data, headers)
            answer = connection.getresponse()
            return answer.status, answer.read(), time.monotonic() - began
        finally:
            connection.close()
