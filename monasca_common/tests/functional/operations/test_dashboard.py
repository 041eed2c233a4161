# SPDX-License-Identifier: Apache-2.0
"""The dashboard in Chromium, with Kafka and with generated figures."""

import os
import re
import shutil
import signal
import time
import unittest
from pathlib import Path
from socketserver import ThreadingMixIn
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import confluent_kafka
import fixtures
from oslotest import base
from playwright.sync_api import sync_playwright

from monasca_common.audit.reconciliation import AuditVerdict, Reconciliation
from monasca_common.devbroker.ports import free_ports
from monasca_common.kafka import dead_letters
from monasca_common.kafka.message import TopicPartition
from monasca_common.operations.dashboard.app import make_app
from monasca_common.operations.dashboard.audit_panel import audit_figures
from monasca_common.operations.dashboard.dead_letter_panel import DeadLetterFigures, DeadLetterReason
from monasca_common.operations.dashboard.durability_panel import DurabilityFigures
from monasca_common.operations.dashboard.lag_panel import GroupFigures
from monasca_common.operations.dashboard.load_panel import TopicLoad
from monasca_common.operations.dashboard.panel_source import PanelSource
from monasca_common.operations.dashboard.panels import Panels
from monasca_common.operations.dashboard.passwords import PasswordFile, password_line
from monasca_common.operations.dashboard.settings import DashboardSettings
from monasca_common.operations.durability import Finding, Severity
from monasca_common.operations.lag.verdict import LagStatus, LagVerdict
from monasca_common.tests.functional.changed_command import command_after, set_constants
from monasca_common.tests.functional.processes import start_process
from monasca_common.tests.kafka_cluster import KafkaClusterFixture
from monasca_common.tests.periodic import periodic
from monasca_common.tests.served import serve
from monasca_common.tests.waiting import Waiting, wait_until_ready
from monasca_common.tests.web import is_ok

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


SECONDS = 60.0
_NOTE_LONGEST_TASK = """() => {
  window.longestTaskMs = 0;
  new PerformanceObserver((list) => {
    window.longestTaskMs = Math.max(window.longestTaskMs, ...list.getEntries().map((each) => each.duration));
  }).observe({ type: "longtask" });
}"""
PASSWORD = "correct horse battery"
ROWS = """(rows) => rows.map((row) => Array.from(row.cells).map((cell) => cell.innerText.trim()))"""


def table(page, panel):
    """Return the visible rows of a panel's table."""
    return page.eval_on_selector_all(f"section[aria-labelledby='{panel}-title'] tbody tr", ROWS)


@periodic("the unit tests cover the figures; TestDashboardServer runs the program")
class TestDashboardOfKafka(Waiting, base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.cluster = self.useFixture(KafkaClusterFixture()).cluster
        for topic in ("metrics", "metrics.dlq"):
            self.cluster.create_topic(topic, 2)
        self.producer = confluent_kafka.Producer({**self.cluster.direct_options(), "log_level": 0})
        self.browser = self.useFixture(BrowserFixture())

    def put(self, topic, count, partition=0, headers=()):
        for number in range(count):
            self.producer.produce(topic, b"%d" % number, partition=partition, headers=list(headers))
        self.assertEqual(0, self.producer.flush(SECONDS))

    def start(self):
        (port,) = free_ports(1)
        servers = self.cluster.direct_options()["bootstrap.servers"]
        options = f"login = none\nport = {port}\ninterval_seconds = 1\n"
        text = f"[kafka]\nbootstrap_servers = {servers}\n[lag]\nwindow_seconds = 2\n[dashboard]\n{options}"
        path = self.create_tempfiles([("dashboard", text)], ".conf")[0]
        quick = {"monasca_common.operations.dashboard.panels._SOURCE_SECONDS": 8.0}
        command = [*command_after((set_constants, quick)), "dashboard", "--config-file", path]
        self.log = Path(path).with_suffix(".log")
        self.process = start_process(self, command, self.log)
        url = f"http://127.0.0.1:{port}"
        wait_until_ready(lambda: is_ok(f"{url}/healthcheck"), self.process.poll, self.log)
        return url

    def test_figures_change_with_the_content_of_kafka(self):
        self.put("metrics", 30)
        self.put("metrics", 12, partition=1)
        reason = [
            (dead_letters.ORIGIN_TOPIC, b"metrics"),
            (dead_letters.ERROR_CLASS, b"Poison"),
            (dead_letters.ERROR_TEXT, b"the value is not JSON"),
            (dead_letters.GROUP, b"persister"),
        ]
        self.put("metrics.dlq", 3, headers=reason)
        self.cluster.admin.alter_group_offsets("persister", {TopicPartition("metrics", 0): 25})
        page = self.browser.page()
        page.goto(self.start())
        page.locator("section[aria-labelledby=lag-title] td", has_text="STOP").wait_for()
        page.locator("section[aria-labelledby=dead-letters-title] td", has_text="not JSON").wait_for()
        page.locator("section[aria-labelledby=load-title] td", has_text="42").wait_for()
        page.locator("section[aria-labelledby=durability-title] td", has_text="one_copy").wait_for()
        ((status, group, reads, unread, *_),) = table(page, "lag")
        self.assertEqual(("persister", "metrics", "5"), (group, reads, unread))
        self.assertIn("STOP", status)
        ((letters, topic, origin, by, why, _),) = table(page, "dead-letters")
        self.assertEqual(("metrics.dlq", "metrics", "persister"), (topic, origin, by))
        self.assertEqual(("3", "Poison: the value is not JSON"), (re.sub(r"\D", "", letters), why))
        self.assertEqual({"metrics": "42", "metrics.dlq": "3"}, {row[0]: row[4] for row in table(page, "load")})
        self.assertRegex(page.locator(".headline").inner_text(), r"2 errors, 1 warning\.")
        keep_picture(page, "kafka")
        self.cluster.admin.alter_group_offsets(
            "persister", {TopicPartition("metrics", 0): 30, TopicPartition("metrics", 1): 12}
        )
        page.locator("section[aria-labelledby=lag-title] td", has_text="OK").wait_for()
        self.assertEqual("0", table(page, "lag")[0][3])
        self.assertEqual({"persister"}, set(self.cluster.admin.groups()))  # a dashboard leaves no data in the cluster
        self.stop_brokers(page)
        self.assertEqual([], self.browser.complaints)

    def stop_brokers(self, page):
        """Stop the brokers: old figures stay and are marked as old, and the dashboard still ends immediately."""
        for node in self.cluster.nodes:
            node.kill()
        page.locator("section[aria-labelledby=lag-title]", has_text="not reachable since").wait_for()
        self.assertEqual("persister", table(page, "lag")[0][1])
        began = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        self.assertEqual(0, self.process.wait(SECONDS), self.log.read_text())
        self.assertLess(time.monotonic() - began, SECONDS / 2)


class MadeUpFigures:
    """The figures of the sources. Tests change them."""

    def __init__(self, count=3):
        ok = LagVerdict(LagStatus.OK, 5, 2.0, 0, 6 * 86_400.0, 1.0)
        stop = LagVerdict(LagStatus.STOP, 12_400, 4000.0, 0, 1800.0, 1.0)
        names = [f"topic-{number:04}" for number in range(count)]
        self.lag = tuple(
            GroupFigures(
                f"reader-of-{name}",
                stop if number == count // 2 else ok,
                {TopicPartition(name, 0): stop if number == count // 2 else ok},
                (3, 9, 4, 5),
                12.5,
            )
            for number, name in enumerate(names)
        )
        self.load = tuple(TopicLoad(name, 1000 + number, (5.0, 7.5, 6.0)) for number, name in enumerate(names))
        text = "min.insync.replicas is 1: a leader acknowledges messages that only it has; set it to 2"
        findings = tuple(Finding(name, Severity.ERROR, "leader_alone", (), text) for name in names[::2])
        self.durability = DurabilityFigures(count, findings)
        reason = DeadLetterReason("topic-0001", "reader", "Poison: the value is not JSON", 7, 1_700_000_000_000)
        self.dead_letters = (DeadLetterFigures("topic-0001.dlq", 7, (reason,)),)

        self.audit = audit_figures(_balances(names), _now_ms(), 600)

    def panels(self, now_ms=None):
        names = ("audit", "lag", "load", "durability", "dead-letters")
        return Panels({name: self.source(name, name.replace("-", "_")) for name in names}, now_ms or _now_ms)

    def source(self, name, attribute):
        def gather(_now_ms):
            return getattr(self, attribute)

        source = PanelSource(name, gather, interval_seconds=0.1, timeout_seconds=60, now_ms=_now_ms)
        source.refresh()
        return source


def _now_ms():
    return time.time_ns() // 1_000_000


def _balances(names):
    """Return two hours of each topic. The first topic lost messages at the database; the second one has duplicates in
    its log."""
    newest = _now_ms() // 600_000 * 600_000
    for number, name in enumerate(names):
        for back in range(12):
            for tier in ("broker", "database"):
                lost = {4: 2, 5: 80, 6: 700}.get(back, 0) if number == 0 and tier == "database" else 0
                late = 40 if back == 0 and tier == "database" else 0
                verdict = AuditVerdict.INCOMPLETE if lost else AuditVerdict.OPEN if late else AuditVerdict.OK
                yield Reconciliation(
                    name,
                    newest - back * 600_000,
                    tier,
                    "",
                    expected=1000,
                    messages=1000 - lost - late,
                    lost=lost,
                    late=late,
                    duplicates=3 if number == 1 and back == 2 and tier == "broker" else 0,
                    surplus=0,
                    verdict=verdict,
                )


class TestDashboardInBrowser(Waiting, base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.browser = self.useFixture(BrowserFixture())
        self.addCleanup(lambda: self.assertEqual([], self.browser.complaints))

    def serve(self, figures=None, settings=None, login=None):
        self.panels = (figures or MadeUpFigures()).panels()
        self.panels.start()
        self.addCleanup(self.panels.stop)
        app = make_app(settings or DashboardSettings(login="none"), self.panels, login)
        return self.useFixture(ServedApp(app)).url

    @periodic("the browser; the normal run contains test_a_user_logs_in_and_out")
    def test_a_thousand_topics_are_shown_worst_first_and_found_by_name(self):
        figures = MadeUpFigures(1000)
        url = self.serve(figures)
        page = self.browser.page()
        began = time.monotonic()
        page.goto(url)
        self.assertIn("reader-of-topic-0500", table(page, "lag")[0][1])
        self.assertLess(time.monotonic() - began, 10)
        self.assertLess(page.evaluate("document.querySelectorAll('*').length"), 1000)
        keep_picture(page, "thousand-topics")
        self.assert_a_refresh_freezes_nothing(page, figures)
        page.click("text=All 1,000 rows of Consumers")
        page.locator("main", has_text="page 1 of 20").wait_for()
        self.assertEqual(50, page.locator("tbody tr").count())
        page.click("text=Next page")
        page.wait_for_url("**page=2")
        page.fill("#find", "topic-0777")
        page.press("#find", "Enter")
        page.wait_for_url("**find=topic-0777")
        self.assertEqual(["reader-of-topic-0777"], page.locator("tbody th a").all_inner_texts())
        keep_picture(page, "found")

    def assert_a_refresh_freezes_nothing(self, page, figures):
        """Change the figures of a thousand groups, and check that no task of the page takes long."""
        page.evaluate(_NOTE_LONGEST_TASK)
        worst = LagVerdict(LagStatus.STOP, 54_321, 4000.0, 0, 1800.0, 1.0)
        figures.lag = tuple(
            GroupFigures(group.name, worst, dict.fromkeys(group.partitions, worst)) for group in figures.lag
        )
        page.locator("section[aria-labelledby=lag-title] td", has_text="54,321").first.wait_for()
        page.locator(".headline", has_text=" errors").wait_for()
        self.assertLess(page.evaluate("document.querySelectorAll('*').length"), 1000)
        self.assertLess(page.evaluate("longestTaskMs"), 2000)

    @periodic("the browser; the normal run contains test_a_user_logs_in_and_out")
    def test_everything_is_reachable_by_keyboard_and_the_focus_survives_updates(self):
        figures = MadeUpFigures()
        page = self.browser.page()
        page.goto(self.serve(figures))
        page.keyboard.press("Tab")
        self.assertEqual("Skip to the content", page.evaluate("document.activeElement.innerText"))
        page.keyboard.press("Enter")
        self.assertEqual("content", page.evaluate("document.activeElement.id"))
        page.keyboard.press("Tab")
        self.assertEqual("/audit", page.evaluate("document.activeElement.getAttribute('href')"))
        ok = LagVerdict(LagStatus.OK, 777, 2.0, 0, None, 1.0)
        figures.audit = audit_figures((), 0, 600)
        figures.lag = (GroupFigures("the-only-reader", ok, {TopicPartition("metrics", 0): ok}),)
        figures.durability = DurabilityFigures(1, ())
        page.locator("td", has_text="777").wait_for()
        page.locator(".headline", has_text="1 warning").wait_for()
        page.focus("text=the-only-reader")
        figures.dead_letters = ()
        page.locator(".headline", has_text="Nothing is wrong").wait_for()
        self.assertEqual("the-only-reader", page.evaluate("document.activeElement.innerText"))
        self.assertIn("Nothing is wrong", page.title())
        keep_picture(page, "nothing-wrong")
        page.keyboard.press("Enter")
        page.get_by_role("heading", name="Consumer group the-only-reader").wait_for()

    @periodic("the browser; the normal run contains test_a_user_logs_in_and_out")
    def test_a_screen_reader_finds_headings_tables_and_the_verdict(self):
        page = self.browser.page()
        page.goto(self.serve())
        self.assertIn(" errors", page.get_by_role("status").inner_text())
        for title in ("Completeness", "Consumers", "Dead letters", "Durability", "Load and delay"):
            region = page.get_by_role("region", name=re.compile(f"^{title}")).first
            self.assertEqual(1, region.get_by_role("table", name=title).count(), title)
            self.assertGreater(region.get_by_role("columnheader").count(), 4)
        self.assertEqual("en", page.get_attribute("html", "lang"))
        unnamed = "Array.from(document.querySelectorAll('a, button, input, svg')).filter((each) => "
        unnamed += "!(each.innerText || each.ariaLabel || each.labels?.length || each.type === 'hidden')).length"
        self.assertEqual(0, page.evaluate(unnamed))

    @periodic("the browser; the normal run contains test_a_user_logs_in_and_out")
    def test_light_and_dark_differ_and_every_text_can_be_read_in_both(self):
        url = self.serve()
        grounds = set()
        for scheme in ("light", "dark"):
            page = self.browser.page(scheme)
            page.goto(url)
            grounds.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
            for path in ("/", "/audit", "/lag", "/durability"):
                page.goto(url + path)
                self.assertEqual([], page.evaluate(CONTRAST), f"{path} {scheme}")
            page.goto(url)
            keep_picture(page, scheme)
        self.assertEqual(2, len(grounds))

    def test_without_scripts_all_content_is_shown(self):
        page = self.browser.page(java_script_enabled=False)
        page.goto(self.serve())
        self.assertEqual(3, page.locator("section[aria-labelledby=lag-title] tbody tr").count())

    def test_a_user_logs_in_and_out_in_a_browser(self):
        users = self.create_tempfiles([("users", password_line("ada", PASSWORD) + "\n")], "")[0]
        settings = DashboardSettings(login="file", password_file=users)
        url = self.serve(settings=settings, login=PasswordFile(Path(users)))
        page = self.browser.page()
        page.goto(f"{url}/lag")
        self.assertEqual("user", page.evaluate("document.activeElement.id"))
        keep_picture(page, "login")
        for password in ("wrong", PASSWORD):
            page.fill("#user", "ada")
            page.fill("#password", password)
            page.keyboard.press("Enter")
            if password == "wrong":
                self.assertIn("Login refused", page.get_by_role("alert").first.inner_text())
        page.wait_for_url(f"{url}/lag")
        self.assertEqual("", page.evaluate("document.cookie"))
        page.click("text=Log out")
        page.wait_for_url(f"{url}/login")
        page.goto(url)
        page.wait_for_url(f"{url}/login**")
        self.browser.complaints.clear()  # Chromium reports the 401 of the wrong password
