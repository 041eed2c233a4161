# SPDX-License-Identifier: Apache-2.0
"""The charts of metrics in a real Chromium, of a real API over a real database."""

import re
from datetime import UTC, datetime

from monasca_common.alarms.alarm_metrics import AlarmSeries, add_metrics
from monasca_common.alarms.database import AlarmsDatabase
from monasca_common.models.rows import AlarmTransition
from monasca_common.operations.dashboard.app import make_app
from monasca_common.operations.dashboard.metric_charts import iso
from monasca_common.operations.dashboard.settings import DashboardSettings
from monasca_common.storage.base import Kind
from monasca_common.storage.sql import tables
from monasca_common.storage.testing.scenario import make_series, measurement
from monasca_common.tests.functional.operations.browser import CONTRAST, BrowserFixture, ServedApp, keep_picture
from monasca_common.tests.functional.operations.test_dashboard import ROWS, MadeUpFigures
from monasca_common.tests.periodic import periodic
from monasca_common.tests.unit.api.reads_case import BASE_MS, Reads
from monasca_common.tests.unit.storage.sqlite_case import SqliteTestCase

_PLACES = "(all) => all.map((each) => [each.className.baseVal, each.x.baseVal.value, each.width.baseVal.value])"


class TestChartsInBrowser(Reads, SqliteTestCase):
    """Metrics of a real API over a real database."""

    settings = {"noauth_tenant": "tenant"}  # noqa: RUF012 - as the class above declares it

    def setUp(self):
        super().setUp()
        self.browser = self.useFixture(BrowserFixture())
        self.addCleanup(lambda: self.assertEqual([], self.browser.complaints))
        first_ms = BASE_MS + 10 * 60_000
        series = {host: make_series("cpu.percent", hostname=host) for host in ("web", "db")}
        aggregate = make_series("cpu.percent_agg", hostname="web")
        self.values = {"web": [20 + 3 * (each % 7) for each in range(50)], "db": [60 - each for each in range(50)]}
        self.store(
            *(
                measurement(series=series[host], value=float(value), time_ms=first_ms + number * 60_000)
                for host, values in self.values.items()
                for number, value in enumerate(values)
            ),
            measurement(series=aggregate, value=33.25, time_ms=BASE_MS + 2_600_000),
        )
        panels = MadeUpFigures().panels(lambda: BASE_MS + 3_600_000)
        api = self.useFixture(ServedApp(self.client.app))
        settings = DashboardSettings(login="none", api_url=api.url)
        self.url = self.useFixture(ServedApp(make_app(settings, panels, None))).url

    def test_a_metric_is_chosen_narrowed_and_shown_with_the_values_of_the_database(self):
        page = self.browser.page()
        page.goto(self.url)
        page.click("text=Metrics")
        page.fill("#name", "cpu.percent")
        page.press("#name", "Enter")
        page.get_by_role("img", name=re.compile("^cpu.percent:")).wait_for()
        self.assertEqual("cpu.percent_agg", page.input_value("#beside"))
        self.assertEqual(["any", "db", "web"], page.locator("#dimension-1 option").all_inner_texts())
        self.assertIn("3 series with 101 points, from 11 to 60.", page.inner_text("#chart"))
        self.assertEqual(3, page.locator("svg.chart polyline").count())
        keep_picture(page, "chart-raw")
        page.select_option("#dimension-1", "web")
        page.get_by_role("button", name="Show").click()
        page.wait_for_url("**d.hostname=web**")
        self.assertEqual(2, page.locator("svg.chart polyline").count())
        page.click("summary")
        shown = page.eval_on_selector_all("details tbody tr", ROWS)
        measured = [int(value) for _, name, value in shown if name.startswith("cpu.percent (")]
        self.assertEqual(self.values["web"][::-1], measured)
        self.assertEqual(["33.25"], [value for _, name, value in shown if name.startswith("cpu.percent_agg")])

    @periodic("the browser; test_a_metric_is_chosen is the smoke test")
    def test_averages_are_those_of_the_api_in_dark_as_well(self):
        page = self.browser.page("dark")
        page.goto(f"{self.url}/charts?name=cpu.percent&d.hostname=db&function=avg&period=900&minutes=60&beside=")
        (element,) = self.elements(
            "/v2.0/metrics/statistics",
            name="cpu.percent",
            dimensions="hostname:db",
            statistics="avg",
            period="900",
            start_time=iso(BASE_MS),
        )
        self.assertEqual(len(element["statistics"]), page.locator("svg.chart circle").count())
        page.click("summary")
        shown = page.eval_on_selector_all("details tbody tr", ROWS)
        averages = [(f"{moment[:10]} {moment[11:19]}", f"{value:,.4g}") for moment, value in element["statistics"]]
        self.assertEqual(averages[::-1], [(moment, value) for moment, _, value in shown])
        self.assertEqual([], page.evaluate(CONTRAST))
        keep_picture(page, "chart-averages-dark")

    @periodic("the browser; test_a_metric_is_chosen is the smoke test")
    def test_the_states_of_stored_alarms_are_bands_behind_the_lines(self):
        definition = {"name": "cpu high", "expression": "max(cpu.percent) > 90", "match_by": ["hostname"]}
        answer = self.client.simulate_post("/v2.0/alarm-definitions", json=definition)
        self.assertEqual(201, answer.status_code, answer.text)
        minutes = ((20, "OK", "ALARM"), (40, "ALARM", "UNDETERMINED"))
        self.store_alarm(answer.json["id"], "web", "UNDETERMINED", minutes)
        for host in ("db", "db2", "db3"):
            self.store_alarm(answer.json["id"], host, "OK", ())
        page = self.browser.page()
        page.goto(f"{self.url}/charts?name=cpu.percent&minutes=60&beside=")
        self.assertIn("3 of 4 alarms on cpu.percent are shown", page.inner_text("#chart"))
        self.assertEqual(5, page.locator("svg.chart rect.behind").count())
        page.goto(f"{self.url}/charts?name=cpu.percent&d.hostname=web&minutes=60&beside=")
        states = [("OK", 0, 20), ("ALARM", 20, 40), ("UNDETERMINED", 40, 60)]
        clocks = [(state, *(_clock(BASE_MS + minute * 60_000) for minute in between)) for state, *between in states]
        self.assertEqual(
            [f"cpu high (hostname web): {state} from {began} to {ended} UTC" for state, began, ended in clocks],
            page.locator("#chart ul:not(.legend) li").all_inner_texts(),
        )
        places = page.eval_on_selector_all("svg.chart rect.state.behind", _PLACES)
        across = sum(width for _, _, width in places) / 60
        left = places[0][1]
        for (state, began, ended), (classes, x, width) in zip(states, places, strict=True):
            self.assertIn(state.lower(), classes.split())
            self.assertAlmostEqual(left + began * across, x, delta=1)
            self.assertAlmostEqual((ended - began) * across, width, delta=1)
        self.assertEqual([state for state, *_ in states], page.locator("svg.chart text.state").all_text_contents())
        keep_picture(page, "alarm-bands")

    def store_alarm(self, definition, host, state, changes):
        """As an evaluator and a persister store it. ``changes``: the minute, the old state and the new one."""
        created = BASE_MS - 3_600_000
        row = {"id": f"alarm-{host}", "tenant": "tenant", "definition_id": definition, "match_values": [host]}
        row |= {"match_key": host.encode().ljust(16), "state": state}
        row |= dict.fromkeys(("state_updated", "updated", "created"), created)
        series = AlarmSeries(row["id"], host.encode().ljust(16), "tenant", "cpu.percent", {"hostname": host})

        def work(connection):
            connection.execute(tables.alarm.insert(), [row])
            add_metrics(connection, [series])

        alarms = AlarmsDatabase(self.database.settings)
        self.addCleanup(alarms.close)
        alarms.write(work)
        of_alarm = ("tenant", row["id"], definition, "cpu high")
        history = [
            AlarmTransition(BASE_MS + minute * 60_000, *of_alarm, old, new, "LOW", "why", None, None, "[]", "[]")
            for minute, old, new in changes
        ]
        if history:
            self.store(*history, kind=Kind.ALARM_HISTORY)

    @periodic("the browser; test_a_metric_is_chosen is the smoke test")
    def test_an_unavailable_api_is_reported_and_the_panels_work(self):
        settings = DashboardSettings(login="none", api_url="http://127.0.0.1:1")
        url = self.useFixture(ServedApp(make_app(settings, MadeUpFigures().panels(), None))).url
        page = self.browser.page()
        page.goto(f"{url}/charts?name=cpu")
        self.assertIn("does not answer", page.locator("main [role=alert]").inner_text())
        page.click("text=Overview")
        page.get_by_role("status").wait_for()


def _clock(time_ms):
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
