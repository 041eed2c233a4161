# SPDX-License-Identifier: Apache-2.0
"""Requests for pages without a browser: access, forms, headers and errors."""

import io
import re
import urllib.parse

from falcon import testing
from oslotest import base

from monasca_common.kafka import RetriableError
from monasca_common.kafka.message import TopicPartition
from monasca_common.operations.dashboard.app import make_app
from monasca_common.operations.dashboard.dead_letter_panel import DeadLetterFigures, DeadLetterReason
from monasca_common.operations.dashboard.lag_panel import GroupFigures
from monasca_common.operations.dashboard.load_panel import TopicLoad
from monasca_common.operations.dashboard.panel_source import PanelSource
from monasca_common.operations.dashboard.panels import Panels
from monasca_common.operations.dashboard.sessions import Account
from monasca_common.operations.dashboard.settings import DashboardSettings
from monasca_common.operations.lag.verdict import LagStatus, LagVerdict

PASSWORD = "correct horse battery"
HOST = {"Host": "127.0.0.1:8076"}


class Users:
    """A login with one user."""

    def __init__(self):
        self.error = None

    def log_in(self, user, password, _project):
        if self.error is not None:
            raise self.error
        return Account(user) if (user, password) == ("ada", PASSWORD) else None


def source(name, figures):
    made = PanelSource(name, lambda _now: figures, interval_seconds=1, timeout_seconds=1, now_ms=lambda: 0)
    made.refresh()
    return made


def lag_of(count):
    verdict = LagVerdict(LagStatus.OK, 0, 0.0, 0, None, 1.0)
    return tuple(GroupFigures(f"group-{number:04}", verdict, {}) for number in range(count))


class AppCase(base.BaseTestCase):
    def client(self, login=None, settings=None, **figures):
        settings = settings or DashboardSettings(login="none")
        panels = Panels({name.replace("_", "-"): source(name, each) for name, each in figures.items()}, lambda: 0)
        self.now = 0.0
        return testing.TestClient(make_app(settings, panels, login, now=lambda: self.now), headers=HOST)


class PagesTest(AppCase):
    def test_text_from_a_message_is_escaped(self):
        reason = DeadLetterReason("metrics", "g", "<script>alert(1)</script>", 1, 0)
        client = self.client(dead_letters=(DeadLetterFigures("metrics.dlq", 1, (reason,)),))
        for path in ("/", "/dead-letters"):
            text = client.simulate_get(path).text
            self.assertIn("&lt;script&gt;alert(1)", text)
            self.assertNotIn("<script>alert", text)

    def test_a_page_shows_fifty_of_a_thousand_groups_and_the_overview_a_few(self):
        client = self.client(lag=lag_of(1000))
        self.assertIn("page 1 of 20", client.simulate_get("/lag").text)
        second = client.simulate_get("/lag?page=2").text
        self.assertEqual(50, second.count('href="/lag?group='))
        self.assertIn("group-0050", second)
        self.assertLess(len(client.simulate_get("/").text), 30_000)

    def test_a_filter_is_kept_on_other_pages(self):
        text = self.client(lag=lag_of(1000)).simulate_get("/lag?find=group-0").text
        self.assertIn('href="/lag?find=group-0&amp;page=2"', text)

    def test_links_between_pages_of_a_group_keep_its_name(self):
        verdict = LagVerdict(LagStatus.OK, 0, 0.0, 0, None, 1.0)
        partitions = {TopicPartition("metrics", number): verdict for number in range(70)}
        client = self.client(lag=(GroupFigures("a&b #1", verdict, partitions),))
        self.assertIn('href="/lag?group=a%26b+%231"', client.simulate_get("/lag").text)
        first = client.simulate_get("/lag", query_string="group=a%26b+%231").text
        self.assertIn('href="/lag?group=a%26b+%231&amp;find=&amp;page=2"', first)
        second = client.simulate_get("/lag", query_string="group=a%26b+%231&find=&page=2").text
        self.assertIn("page 2 of 2", second)
        self.assertIn("metrics/69", second)

    def test_a_group_has_a_page(self):
        client = self.client(lag=lag_of(2))
        self.assertIn("Consumer group group-0001", client.simulate_get("/lag?group=group-0001").text)
        self.assertEqual(404, client.simulate_get("/lag?group=nobody").status_code)

    def test_a_group_page_and_the_load_panel_show_that_the_groups_are_unknown_now(self):
        answers = [lag_of(1), RetriableError("no response")]

        def gather(_now):
            answer = answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer

        lag = PanelSource("lag", gather, interval_seconds=1, timeout_seconds=1, now_ms=lambda: 0)
        panels = Panels({"lag": lag, "load": source("load", (TopicLoad("log", 7),))}, lambda: 0)
        client = testing.TestClient(make_app(DashboardSettings(login="none"), panels, None), headers=HOST)
        self.assertNotIn("no consumer", client.simulate_get("/load").text)
        lag.refresh()
        self.assertIn("no consumer", client.simulate_get("/load").text)
        page, stale = "/lag?group=group-0000", '<p class="stale">'
        self.assertNotIn(stale, client.simulate_get(page).text)
        lag.refresh()
        self.assertIn(stale, client.simulate_get(page).text)
        self.assertNotIn("no consumer", client.simulate_get("/load").text)

    def test_an_unknown_page_is_404_with_a_link_to_the_overview(self):
        answer = self.client().simulate_get("/nowhere")
        self.assertEqual((404, True), (answer.status_code, 'href="/"' in answer.text))

    def test_wrong_numbers_are_refused(self):
        for page in ("0", "x", "-1"):
            self.assertEqual(400, self.client().simulate_get(f"/lag?page={page}").status_code)

    def test_pages_load_nothing_from_other_sites_and_have_no_inline_scripts(self):
        text = self.client(lag=lag_of(3)).simulate_get("/").text
        self.assertEqual([], re.findall(r"(?:src|href)=\"(?:https?:)?//", text))
        self.assertEqual([], re.findall(r"<script(?![^>]*src=)|<style|\sstyle=|\son\w+=", text))


class ViewsTest(base.BaseTestCase):
    def test_a_view_is_built_once_per_check(self):
        figures = [lag_of(3), lag_of(2)]
        lag = PanelSource("lag", lambda _: figures.pop(), interval_seconds=1, timeout_seconds=1, now_ms=lambda: 0)
        panels = Panels({"lag": lag}, lambda: 0)
        lag.refresh()
        first, again = panels.views(), panels.views()
        self.assertTrue(all(one is other for one, other in zip(first, again, strict=True)))
        lag.refresh()
        self.assertEqual([2, 3], [len(views[1].rows) for views in (first, panels.views())])

    def test_figures_that_cannot_be_shown_do_not_affect_the_other_panels(self):
        sources = {"lag": source("lag", lag_of(3)), "durability": source("durability", "no figures")}
        panels = Panels(sources, lambda: 0)
        views = {view.name: view for view in panels.views()}
        self.assertEqual((3, ""), (len(views["lag"].rows), views["lag"].stale))
        self.assertIn("cannot be shown", views["durability"].stale)


class HeadersTest(AppCase):
    def test_every_response_has_the_security_headers(self):
        client = self.client(Users())
        for path in ("/", "/login", "/nowhere", "/static/dashboard.css", "/healthcheck"):
            headers = client.simulate_get(path).headers
            self.assertIn("default-src 'none'", headers["content-security-policy"], path)
            self.assertNotIn("unsafe", headers["content-security-policy"])
            self.assertEqual(("nosniff", "DENY"), (headers["x-content-type-options"], headers["x-frame-options"]))

    def test_a_foreign_host_name_is_refused(self):
        client = self.client()
        self.assertEqual(400, client.simulate_get("/", headers={"Host": "evil.example.org"}).status_code)
        for host in ("localhost:http", "[::1]:x", "[::1", "a:b:c", ""):
            self.assertEqual(400, client.simulate_get("/", headers={"Host": host}).status_code, host)
        for host in ("localhost:8076", "127.0.0.1", "[::1]:8075"):
            self.assertEqual(200, client.simulate_get("/", headers={"Host": host}).status_code, host)

    def test_with_tls_cookies_are_secure(self):
        for options in ({"tls_certificate": "c", "tls_key": "k"}, {"tls_at_proxy": True}):
            client = self.client(Users(), DashboardSettings(login="file", **options))
            headers = {"Content-Type": "application/x-www-form-urlencoded"}
            answer = client.simulate_post("/login", body="user=ada&password=correct+horse+battery", headers=headers)
            cookie = answer.headers["set-cookie"]
            self.assertTrue(cookie.startswith("__Host-monasca-session="))
            self.assertIn("Secure", cookie)
            self.assertIn("max-age", answer.headers["strict-transport-security"])

    def test_with_a_proxy_any_host_name_is_accepted(self):
        client = self.client(Users(), DashboardSettings(login="file", tls_at_proxy=True))
        headers = {"Host": "monasca.example.org"}
        self.assertEqual(200, client.simulate_get("/login", headers=headers).status_code)


class LoginTest(AppCase):
    def setUp(self):
        super().setUp()
        self.users = Users()
        self.address = "127.0.0.1"
        self.browser = self.client(self.users, lag=lag_of(1))

    def post(self, path, fields, cookies=None, headers=None):
        body = "&".join(f"{name}={value}" for name, value in fields.items())
        headers = {"Content-Type": "application/x-www-form-urlencoded", **(headers or {})}
        return self.browser.simulate_post(path, body=body, cookies=cookies, headers=headers, remote_addr=self.address)

    def submit(self, password="correct+horse+battery", user="ada", then="%2F", headers=None):
        return self.post("/login", {"user": user, "password": password, "then": then}, headers=headers)

    def session(self):
        return {"monasca-session": self.submit().cookies["monasca-session"].value}

    def test_pages_require_a_login(self):
        for path in ("/", "/lag", "/nowhere"):
            answer = self.browser.simulate_get(path)
            self.assertEqual(303, answer.status_code)
            self.assertTrue(answer.headers["location"].startswith("/login?then="))

    def test_the_correct_password_leads_to_the_requested_page(self):
        answer = self.submit(then="%2Flag%3Fpage%3D1")
        self.assertEqual((303, "/lag?page=1"), (answer.status_code, answer.headers["location"]))
        cookies = {"monasca-session": answer.cookies["monasca-session"].value}
        self.assertEqual(200, self.browser.simulate_get("/", cookies=cookies).status_code)

    def test_scripts_and_other_sites_cannot_read_the_cookie(self):
        cookie = self.submit().headers["set-cookie"]
        self.assertIn("HttpOnly", cookie)
        self.assertIn("SameSite=Strict", cookie)

    def test_a_wrong_password_is_401_without_details(self):
        for answer in (self.submit("wrong"), self.submit(user="nobody")):
            self.assertEqual(401, answer.status_code)
            self.assertNotIn("monasca-session", answer.cookies)
            self.assertIn("Login refused: check the user, the password and the role", answer.text)

    def test_too_many_wrong_passwords_are_refused_until_time_has_passed(self):
        for _ in range(10):
            self.submit("wrong")
        answer = self.submit()
        self.assertEqual((429, "301"), (answer.status_code, answer.headers["retry-after"]))
        self.now = 301
        self.assertEqual(303, self.submit().status_code)

    def test_a_form_of_another_site_is_refused(self):
        for site in ("cross-site", "same-site"):
            self.assertEqual(403, self.submit(headers={"Sec-Fetch-Site": site}).status_code)
        self.assertEqual(303, self.submit(headers={"Sec-Fetch-Site": "same-origin"}).status_code)

    def test_a_login_does_not_redirect_to_another_site(self):
        for then in ("%2F%2Fevil.example.org", "https%3A%2F%2Fevil.example.org", "%2F%5Cevil.example.org", "%2Flogout"):
            self.assertEqual("/", self.submit(then=then).headers["location"])

    def test_an_invalid_target_page_becomes_the_overview(self):
        for then in ("//[", "http://[x", "/\N{EURO SIGN}", "/a\nb"):
            quoted = urllib.parse.quote(then, safe="")
            self.assertEqual(200, self.browser.simulate_get("/login", query_string=f"then={quoted}").status_code, then)
            answer = self.submit(then=quoted)
            self.assertEqual((303, "/"), (answer.status_code, answer.headers["location"]), then)

    def test_a_correct_password_does_not_reset_the_failures_of_the_address(self):
        for number in range(99):
            self.submit("wrong", user=f"user-{number}")
        self.assertEqual(303, self.submit().status_code)
        self.submit("wrong", user="joan")
        self.assertEqual(429, self.submit("wrong", user="mary").status_code)

    def test_capitals_and_spaces_do_not_change_the_user(self):
        for user in 5 * ("Ada", "ada+"):
            self.submit("wrong", user=user)
        self.assertEqual(429, self.submit().status_code)

    def test_a_keystone_that_does_not_respond_is_503_and_not_a_wrong_password(self):
        self.users.error = RetriableError("Keystone does not respond")
        self.assertEqual(503, self.submit().status_code)

    def test_a_logout_ends_the_session(self):
        cookies = self.session()
        self.assertEqual(303, self.post("/logout", {}, cookies).status_code)
        self.assertEqual(303, self.browser.simulate_get("/", cookies=cookies).status_code)

    def test_a_body_that_is_too_long_or_not_a_form_is_refused(self):
        self.assertEqual(413, self.post("/login", {"user": "x" * 9000}).status_code)
        self.assertEqual(415, self.browser.simulate_post("/login", body="{}").status_code)

    def test_a_form_that_is_not_received_in_time_is_408(self):
        class Silent(io.BytesIO):
            def read(self, size=-1):
                raise BlockingIOError

        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        extras = {"wsgi.input": Silent()}
        self.assertEqual(
            408, self.browser.simulate_post("/login", body="a", headers=headers, extras=extras).status_code
        )
