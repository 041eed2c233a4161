# SPDX-License-Identifier: Apache-2.0
from unittest import mock

from oslotest import base

from monasca_common.kafka.errors import TransportError
from monasca_common.pipeline.archive.job import archive_all
from monasca_common.pipeline.errors import RecordsLost
from monasca_common.pipeline.jobs.job import JobProgress


class TopicsTest(base.BaseTestCase):
    def archivers(self, *outcomes):
        return [mock.Mock(step=mock.Mock(side_effect=[outcome])) for outcome in outcomes]

    def test_the_progress_of_all_topics_is_added(self):
        found = archive_all(self.archivers(JobProgress(2, 1), JobProgress(3, 4)))
        self.assertEqual((5, 5), (found.done, found.left))

    def test_a_topic_that_fails_does_not_delay_other_topics(self):
        first, second = TransportError("no leader"), RecordsLost("retention was faster")
        archivers = self.archivers(first, JobProgress(3), second, JobProgress(3))
        self.assertIs(first, self.assertRaises(TransportError, archive_all, archivers))
        self.assertEqual([1] * 4, [archiver.step.call_count for archiver in archivers])
