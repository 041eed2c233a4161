# SPDX-License-Identifier: Apache-2.0
from pathlib import Path
from unittest import mock

from oslotest import base

from monasca_common.quickstart import aggregates
from monasca_common.quickstart.services import ServiceFailed


class AveragesTest(base.BaseTestCase):
    def refusal(self, output):
        job = mock.Mock()
        job.finished.return_value = output
        job.last_words.return_value = "no records (log: /x/aggregate.log)"
        return str(self.assertRaises(ServiceFailed, aggregates.averages_of, job, Path("/nonexistent")))

    def test_fewer_aggregates_than_metrics_are_an_error_that_names_the_log(self):
        for published in (0, 2):
            refusal = self.refusal(f'Java\n{{"results": {{"published_messages": {published}}}}}\n')
            for part in (f"{published} aggregates were published", "(log: /x/aggregate.log)"):
                self.assertIn(part, refusal)

    def test_a_job_without_a_result_is_an_error_that_names_the_log(self):
        self.assertIn("no result: no records (log: /x/aggregate.log)", self.refusal("Java\n"))
