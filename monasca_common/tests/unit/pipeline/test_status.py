# SPDX-License-Identifier: Apache-2.0
import json
import socket

from oslotest import base
from prometheus_client.parser import text_string_to_metric_families
from testtools.matchers import Contains

from monasca_common.kafka.errors import ConfigurationError
from monasca_common.pipeline.jobs.durations import PartitionLag
from monasca_common.pipeline.jobs.job import JobProgress, JobWatcher
from monasca_common.pipeline.jobs.metrics import served
from monasca_common.pipeline.settings import JobStatusSettings
from monasca_common.tests.web import fetch


class ServedTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.taken = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(self.taken.close)
        self.port = self.taken.getsockname()[1]
        self.heard = []
        self.watcher = JobWatcher(tell=self.heard.append)

    def scraped(self, job):
        families = text_string_to_metric_families(fetch(f"http://127.0.0.1:{self.port}/metrics")[1])
        samples = [sample for family in families for sample in family.samples if sample.labels.get("job") == job]
        return {
            sample.name.removeprefix("monasca_pipeline_")
            + "".join(value for name, value in sorted(sample.labels.items()) if name != "job"): sample.value
            for sample in samples
            if not sample.name.endswith(("_created", "_bucket"))
        }

    def test_a_scrape_returns_the_progress_of_a_job(self):
        self.taken.close()
        with served("backfill", JobStatusSettings(port=self.port), self.watcher) as watcher:
            watcher.tell(JobProgress(100, 50, 2.5, {"records": 90}))
            for _ in range(2):  # the second report has no new offsets
                watcher.tell(JobProgress(150, 0, 1.5, {"records": 130}))
            found = self.scraped("backfill")
        self.assertGreater(found.pop("last_batch_time_seconds"), 0)
        self.assertEqual(
            {
                "offsets_total": 150,
                "behind_offsets": 0,
                "batch_seconds_count": 2,
                "batch_seconds_sum": 4.0,
                "results_totalrecords": 130,
            },
            found,
        )
        self.assertEqual([50, 0, 0], [each.left for each in self.heard])

    def test_each_stage_is_counted_and_a_lag_is_kept_until_a_new_one_is_known(self):
        self.taken.close()
        lags = (PartitionLag("metrics", 0, 7.5), PartitionLag("metrics", 1, 2.0))
        with served("aggregate", JobStatusSettings(port=self.port), self.watcher) as watcher:
            watcher.tell(JobProgress(1, 0, 1.0, {}, {"stage": 0.5, "merge": 0.25}, lags))
            watcher.tell(JobProgress(2, 0, 1.0, {}, {"stage": 1.5}, (PartitionLag("metrics", 1, 0.0),)))
            found = self.scraped("aggregate")
        counts = {name: value for name, value in found.items() if name.startswith("stage_seconds")}
        self.assertEqual(
            {
                "stage_seconds_countstage": 2,
                "stage_seconds_sumstage": 2.0,
                "stage_seconds_countmerge": 1,
                "stage_seconds_summerge": 0.25,
            },
            counts,
        )
        self.assertEqual(
            {"event_time_lag_seconds0metrics": 7.5, "event_time_lag_seconds1metrics": 0.0},
            {name: value for name, value in found.items() if name.startswith("event_time")},
        )

    def probed(self, path):
        status, text = fetch(f"http://127.0.0.1:{self.port}{path}")
        return status, json.loads(text)

    def test_a_job_is_ready_after_a_successful_batch_and_live_while_its_loop_runs(self):
        self.taken.close()
        with served("evaluate", JobStatusSettings(port=self.port), self.watcher) as watcher:
            self.assertEqual((503, ["no batch is complete yet"]), self.reasons())
            watcher.tell(JobProgress(1, 0, 1.0))
            self.assertEqual((200, []), self.reasons())
            watcher.turned("a batch failed: the database does not respond")
            self.assertEqual((503, ["a batch failed: the database does not respond"]), self.reasons())
            self.assertEqual(503, self.probed("/healthcheck")[0])
            self.assertEqual((200, True), (self.probed("/healthz")[0], self.probed("/healthz")[1]["live"]))

    def reasons(self):
        code, body = self.probed("/readyz")
        return code, body["reasons"]

    def test_a_job_whose_loop_hangs_is_not_live(self):
        self.taken.close()
        with served("evaluate", JobStatusSettings(port=self.port, live_seconds=-1.0), self.watcher):
            self.assertEqual(503, self.probed("/healthz")[0])

    def test_without_a_port_there_is_no_server(self):
        with served("aggregate", JobStatusSettings(), self.watcher) as watcher:
            self.assertIs(self.watcher, watcher)

    def test_a_port_in_use_is_an_error_with_the_group_of_the_job(self):
        reported = served("replay", JobStatusSettings(port=self.port), self.watcher)
        error = self.assertRaises(ConfigurationError, reported.__enter__)
        self.assertThat(str(error), Contains("change status_port or status_host in group [pipeline_replay]"))
