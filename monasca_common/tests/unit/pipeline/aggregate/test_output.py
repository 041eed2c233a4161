# SPDX-License-Identifier: Apache-2.0
import dataclasses
import json

from monasca_common.models.metric import MetricDecoder
from monasca_common.pipeline.aggregate.output import output
from monasca_common.tests.unit.pipeline import pipeline_case
from monasca_common.tests.unit.pipeline.pipeline_case import PUBLISHER, envelope, pre_row, shipped_row, specifications

PERIOD_MS = 1_457_366_400_000


class OutputTest(pipeline_case.PipelineCase):
    def setUp(self):
        super().setUp()
        specs = specifications([pre_row("cpu", "mem_total_all")], [shipped_row("mem_total_all")])
        self.transform = specs.transforms["mem_total_all"]
        self.usage_ = self.usage(specs, [envelope(timestamp=PERIOD_MS + 1_999.9), envelope(timestamp=PERIOD_MS + 5)])

    def output(self, *, publisher=PUBLISHER, usage=None, period_ms=PERIOD_MS, version_ms=1_000, provisional=False):
        usage = usage or self.usage_
        return output(publisher, self.transform, usage, period_ms, version_ms=version_ms, provisional=provisional)

    def test_the_envelope_has_all_fields_of_the_aggregate(self):
        self.assertEqual(
            {
                "metric": {
                    "name": "mem.total_mb_agg",
                    "dimensions": {"aggregation_period": "hourly", "host": "all", "project_id": "all"},
                    "timestamp": PERIOD_MS,
                    "value": 1.0,
                    "value_meta": {
                        "record_count": "2",
                        "firstrecord_timestamp_string": "2016-03-07 16:00:00",
                        "lastrecord_timestamp_string": "2016-03-07 16:00:01",
                    },
                },
                "meta": {"tenantId": "the-tenant", "region": "the-region"},
                "creation_time": 1,
            },
            json.loads(self.output().value),
        )

    def test_a_period_that_has_not_ended_is_marked_as_provisional(self):
        meta = json.loads(self.output(provisional=True).value)["metric"]["value_meta"]
        self.assertEqual("true", meta["provisional"])

    def test_the_version_is_stored_to_the_millisecond(self):
        for version_ms in (1_700_000_000_000, 1_700_000_000_001, 1_700_000_000_999, 1_700_000_000_050):
            decoded = MetricDecoder().decode_all([self.output(version_ms=version_ms).value])
            self.assertEqual(version_ms, decoded.rows[0].version)

    # Rule 30
    def test_the_id_does_not_depend_on_the_time_of_publication(self):
        first = self.output().message_id
        self.assertEqual(16, len(first))
        self.assertEqual(first, self.output(version_ms=2_000).message_id)

    def test_different_content_has_a_different_id(self):
        usage = self.usage_
        ids = [
            one.message_id
            for one in (
                self.output(),
                self.output(provisional=True),
                self.output(period_ms=0),
                self.output(usage=dataclasses.replace(usage, quantity=1.0000000000000002)),
                self.output(usage=dataclasses.replace(usage, count=3)),
                # The dimensions show only the tenant, but the ids of the groups differ.
                self.output(usage=dataclasses.replace(usage, group=(("zone", "z"),))),
                self.output(publisher=dataclasses.replace(PUBLISHER, job="backfill")),
                self.output(publisher=dataclasses.replace(PUBLISHER, tenant="another")),
                self.output(publisher=dataclasses.replace(PUBLISHER, region="another")),
            )
        ]
        self.assertEqual(len(ids), len(set(ids)))
