# SPDX-License-Identifier: Apache-2.0
"""Which files are merged; the merging itself is tested with Spark."""

from oslotest import base

from monasca_common.pipeline.archive.layout import HOUR_MS, Offsets
from monasca_common.pipeline.archive.manifest import ArchivedFile
from monasca_common.pipeline.compaction.batch import binned


def file(first, size_bytes, *, hour=1, partition=0, topic_id=None):
    return ArchivedFile("t", hour * HOUR_MS, Offsets(partition, first, first + 9), 10, size_bytes, "b", "s", topic_id)


class BinnedTest(base.BaseTestCase):
    def bins(self, *files):
        return [[each.offsets.first for each in some] for some in binned(files, 100)]

    def test_small_files_are_merged_in_the_order_of_offsets_up_to_the_target(self):
        self.assertEqual([[0, 10, 20], [30, 40]], self.bins(*(file(first, 33) for first in (40, 0, 20, 10, 30))))

    def test_a_file_of_half_the_target_stays(self):
        self.assertEqual([[0, 20]], self.bins(file(0, 1), file(10, 50), file(20, 1)))

    def test_one_alone_stays(self):
        self.assertEqual([], self.bins(file(0, 1)))
        self.assertEqual([[0, 10]], self.bins(file(0, 45), file(10, 45), file(20, 45)))

    def test_hours_partitions_and_topics_of_one_name_are_not_mixed(self):
        others = (file(0, 1), file(0, 1, hour=2), file(0, 1, partition=1), file(0, 1, topic_id="another"))
        self.assertEqual([], self.bins(*others))
