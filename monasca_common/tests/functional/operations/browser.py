# SPDX-License-Identifier: Apache-2.0
"""A headless Chromium, and pages that this process serves to it."""

import os
import shutil
import unittest
from socketserver import ThreadingMixIn
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import fixtures
from playwright.sync_api import sync_playwright

from monasca_common.tests.served import serve

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_MISSING = "Chromium is not installed: no `chromium` on the PATH (Debian's package `chromium` has it)"
_PATIENCE_MS = 60_000
# Returns the texts whose contrast with their background is too low according to WCAG 2.
CONTRAST = """() => {
  const parts = (color) => color.match(/[\\d.]+/g).map(Number);
  const light = (color) => {
    const [r, g, b] = parts(color).slice(0, 3).map((each) => each / 255)
      .map((each) => each <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    for (let each = element; each; each = each.parentElement) {
      const color = getComputedStyle(each).backgroundColor;
      if (parts(color).length < 4 || parts(color)[3] > 0) return color;
    }
    return "rgb(255, 255, 255)";
  };
  const poor = [];
  for (const element of document.querySelectorAll("body *")) {
    const own = Array.from(element.childNodes).some((each) => each.nodeType === 3 && each.textContent.trim());
    if (!own || !element.checkVisibility() || element.closest(".unseen, .skip, option, title")) continue;
    const [one, other] = [light(getComputedStyle(element).color), light(behind(element))].sort((a, b) => b - a);
    const ratio = (one + 0.05) / (other + 0.05);
    if (ratio < 4.5) poor.push(element.tagName + "." + element.className + " " + ratio.toFixed(2));
  }
  return poor;
}"""


class BrowserFixture(fixtures.Fixture):
    """``page()`` opens a tab. ``complaints``: the errors of all pages, including errors of scripts and violated
    policies."""

    def _setUp(self):
        if CHROMIUM is None:
            raise unittest.SkipTest(_MISSING)
        playwright = sync_playwright().start()
        self.addCleanup(playwright.stop)
        self._browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        self.addCleanup(self._browser.close)
        self.complaints = []

    def page(self, color_scheme="light", **options):
        context = self._browser.new_context(
            color_scheme=color_scheme, viewport={"width": 1400, "height": 900}, **options
        )
        context.set_default_timeout(_PATIENCE_MS)
        page = context.new_page()
        page.on("console", lambda message: self._heard(message.type, message.text))
        page.on("pageerror", lambda error: self._heard("error", str(error)))
        return page

    def _heard(self, kind, text):
        if kind in ("error", "warning"):
            self.complaints.append(text)


def keep_picture(page, name):
    """Write a picture of the whole page to the folder that the environment variable names, for review by people."""
    folder = os.environ.get("MONASCA_DASHBOARD_PICTURES")
    if folder:
        page.screenshot(path=os.path.join(folder, f"{name}.png"), full_page=True)


class ServedApp(fixtures.Fixture):
    """A WSGI application of this process, at ``url``."""

    def __init__(self, app):
        self._app = app

    def _setUp(self):
        server = make_server("127.0.0.1", 0, self._app, server_class=_Server, handler_class=_Quiet)
        self.url = f"http://127.0.0.1:{server.server_port}"
        self.addCleanup(serve(server))


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True  # browsers also open connections before they need them


class _Quiet(WSGIRequestHandler):
    def log_message(self, *_):
        """Log nothing."""
