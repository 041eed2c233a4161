# SPDX-License-Identifier: Apache-2.0
"""A limit of the number of files that a post enters, counted with the memory driver."""

import sys

from monasca_common.tests.unit.api.api_case import ApiCase, metric
from monasca_common.tests.unit.kafka.test_call_paths import product_file


class CallPathTest(ApiCase):
    def files_of(self, path, body):
        self.post(path, body)  # opens the producer
        files = set()

        def note(frame, event, _argument):
            if event == "call" and (file := product_file(frame)):
                files.add(file)

        sys.setprofile(note)
        try:
            answer = self.post(path, body)
        finally:
            sys.setprofile(None)
        self.assertEqual(204, answer.status_code)
        return sorted(files)

    def test_a_post_of_a_metric_enters_22_files_12_of_them_of_the_api_and_the_models(self):
        files = self.files_of("/v2.0/metrics", metric())
        self.assertLessEqual(len(files), 22, files)
        own = [file for file in files if file.startswith(("api/", "models/"))]
        self.assertLessEqual(len(own), 12, own)
