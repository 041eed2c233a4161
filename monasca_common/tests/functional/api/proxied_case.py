# SPDX-License-Identifier: Apache-2.0
"""An API behind a real nginx with the published configuration."""

import sys
import time

from monasca_common.tests import web
from monasca_common.tests.functional import nginx
from monasca_common.tests.functional.api.api_case import ApiProcessCase


class ProxiedCase(ApiProcessCase):
    def proxy(self, api, **changes):
        if nginx.program() is None:
            print(nginx.MISSING, file=sys.stderr)  # noqa: T201 - show that the test did not run
            self.skipTest(nginx.MISSING)
        return self.useFixture(nginx.Nginx(api.port, **changes))

    def ask(self, port, method, path, body=None, headers=None):
        """Return status, body and seconds of a response."""
        began = time.monotonic()
        status, _, text = web.request(port, method, path, body, headers)
        return status, text, time.monotonic() - began
