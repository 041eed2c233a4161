# SPDX-License-Identifier: Apache-2.0
from types import SimpleNamespace

from oslotest import base
from py4j.protocol import Py4JError

from monasca_common.pipeline.source.offset_store import OffsetRange
from monasca_common.pipeline.spark.description import described, offsets_text


class Context:
    """What Spark keeps for a thread. ``error``: raised by all that comes later."""

    def __init__(self):
        self.kept, self.error = {}, None

    def getLocalProperty(self, name):  # noqa: N802
        return self.kept.get(name)

    def setLocalProperty(self, name, value):  # noqa: N802
        if self.error:
            raise self.error
        self.kept[name] = value


class DescribedTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.context = Context()
        self.spark = SimpleNamespace(sparkContext=self.context)

    def found(self):
        return self.context.kept.get("spark.jobGroup.id"), self.context.kept.get("spark.job.description")

    def test_a_block_has_a_description_and_what_was_before_comes_back(self):
        with described(self.spark, "b1", "outer"):
            with described(self.spark, "b2", "inner"):
                self.assertEqual(("b2", "inner"), self.found())
            self.assertEqual(("b1", "outer"), self.found())
        self.assertEqual((None, None), self.found())

    def test_a_spark_that_dies_within_does_not_hide_why(self):
        def die():
            with described(self.spark, "b1", "outer"):
                self.context.error = Py4JError("gone")
                raise ValueError("the reason")

        self.assertEqual("the reason", str(self.assertRaises(ValueError, die)))


class OffsetsTextTest(base.BaseTestCase):
    def test_each_partition_is_named_with_its_first_and_last_offset(self):
        ranges = [OffsetRange(1, 5, 15), OffsetRange(0, 10, 30), OffsetRange(2, 7, 7)]
        self.assertEqual("metrics, 30 offsets: 0 from 10 to 29, 1 from 5 to 14", offsets_text("metrics", ranges))

    def test_of_many_partitions_ten_are_named(self):
        text = offsets_text("metrics", [OffsetRange(number, 0, 1) for number in range(64)])
        self.assertEqual("metrics, 64 offsets: 0 from 0 to 0, ", text[:36])
        self.assertEqual("9 from 0 to 0, and 54 partitions more", text[-37:])
