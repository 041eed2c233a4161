# SPDX-License-Identifier: Apache-2.0
import cramjam

from monasca_common.kafka.testing import Fail
from monasca_common.models.metric import MetricDecoder
from monasca_common.storage.settings import RowLimits
from monasca_common.tests.unit.api.api_case import NOW_MS, ApiCase
from monasca_common.tests.unit.models.write_request import label, number, part, request_2, sample, up

_PATH = "/api/v1/write"
_HEADERS = {"Content-Type": "application/x-protobuf", "Content-Encoding": "snappy"}


class RemoteWriteCase(ApiCase):
    def write(self, *bodies, headers=_HEADERS, client=None, raw=None):
        body = bytes(cramjam.snappy.compress_raw(b"".join(bodies))) if raw is None else raw
        return self.post(_PATH, body, headers, client=client)

    def message(self, answer):
        return answer.json["error"]["message"]

    def rows(self):
        return MetricDecoder().decode_all([record.value for record in self.records()]).rows


class WriteTest(RemoteWriteCase):
    def test_samples_are_envelopes_of_the_tenant(self):
        answer = self.write(up((1.5, NOW_MS), (float("nan"), NOW_MS + 1), instance="a:9090"))
        self.assertEqual((204, b""), (answer.status_code, answer.content))
        rows = sorted(self.rows(), key=lambda row: row.time_ms)
        self.assertEqual(["1.5", "nan"], [repr(row.value) for row in rows])
        self.assertEqual(
            {("t1", "RegionOne", "up", "a:9090")},
            {(r.series.tenant, r.series.region, r.series.name, r.series.dimensions["instance"]) for r in rows},
        )

    def test_a_repeated_sample_has_the_same_id_in_any_request(self):
        self.write(up((1.0, NOW_MS), job="a"), up((2.0, NOW_MS), job="b"))
        self.write(up((2.0, NOW_MS), job="b"))
        self.write(up((2.0, NOW_MS), job="b"), headers={**_HEADERS, "X-Project-Id": "t2"})
        ids = [dict(record.headers)["message-id"] for record in self.records()]
        self.assertEqual((4, 3), (len(ids), len(set(ids))))

    def test_a_sample_of_another_region_has_another_id(self):
        for region in ("north", "south"):
            self.write(up((1.0, NOW_MS)), client=self.new_client(region=region))
        self.assertEqual(2, len({dict(record.headers)["message-id"] for record in self.records()}))

    def test_a_request_without_samples_is_accepted(self):
        for body in (b"", part(3, b"metadata"), up()):
            self.assertEqual(204, self.write(body).status_code)
        self.assertEqual([], self.records())

    def test_valid_samples_are_stored_before_invalid_ones_are_refused(self):
        answer = self.write(up((1.0, NOW_MS)), up((1.0, 5), job="old"), up((3.0, NOW_MS), job="new"))
        self.assertEqual(400, answer.status_code)
        self.assertIn("1 of 3 samples were refused; the others are stored: timeseries[1]", self.message(answer))
        self.assertEqual((2, 1), (answer.json["error"]["delivered"], answer.json["error"]["rejected"]))
        counted = self.client.simulate_get("/metrics").text
        for outcome, count in (("delivered", 2), ("rejected", 1)):
            self.assertIn(f'monasca_api_messages_total{{kind="metrics",outcome="{outcome}"}} {count}.0', counted)
        self.assertEqual([1.0, 3.0], sorted(row.value for row in self.rows()))

    def test_a_sample_too_large_for_kafka_is_refused_and_the_others_are_stored(self):
        self.kafka.broker.create_topic("small", 1, max_message_bytes=1000)
        client = self.new_client(metrics_topic="small")
        large = up((1.0, NOW_MS), **{f"d{number}": "x" * 200 for number in range(9)})
        answer = self.write(up((1.0, 5)), large, up((1.0, NOW_MS)), client=client)
        self.assertEqual(400, answer.status_code)
        self.assertIn("2 of 3 samples were refused; the others are stored", self.message(answer))
        self.assertIn("item 1 has 2", self.message(answer))
        self.assertEqual((1, 2), (answer.json["error"]["delivered"], answer.json["error"]["rejected"]))
        self.assertEqual(1, len(self.records("small")))

    def test_limits_of_storage_apply(self):
        client = self.new_client(limits=RowLimits(max_dimensions=1))
        self.assertEqual(204, self.write(up((1.0, NOW_MS), a="b"), client=client).status_code)
        self.assertEqual(400, self.write(up((1.0, NOW_MS), a="b", c="d"), client=client).status_code)

    def test_the_limit_of_series_is_429(self):
        client = self.new_client(max_series_per_tenant=1)
        self.assertEqual(204, self.write(up((1.0, NOW_MS), a="b"), client=client).status_code)
        answer = self.write(up((1.0, NOW_MS), a="c"), client=client)
        self.assertEqual((429, True), (answer.status_code, "Retry-After" in answer.headers))

    def test_without_an_acknowledgement_the_status_is_503(self):
        self.kafka.broker.inject("produce", Fail("INVALID_RECORD"), topic="metrics")
        answer = self.write(up((1.0, NOW_MS)), up((1.0, 5)))
        self.assertEqual((503, True), (answer.status_code, "Retry-After" in answer.headers))


class TypesTest(RemoteWriteCase):
    def test_the_message_of_remote_write_1_is_accepted_by_its_name(self):
        for given in ("application/x-protobuf;proto=prometheus.WriteRequest", "Application/X-Protobuf ; q=1"):
            self.assertEqual(
                204, self.write(up((1.0, NOW_MS)), headers={**_HEADERS, "Content-Type": given}).status_code
            )

    def test_other_types_are_415(self):
        for given in ("application/x-protobuf;proto=io.prometheus.write.v3.Request", "application/json", ""):
            answer = self.write(up((1.0, NOW_MS)), headers={**_HEADERS, "Content-Type": given})
            self.assertEqual(415, answer.status_code)
            self.assertIn("proto=prometheus.WriteRequest or", self.message(answer))

    def test_other_encodings_are_415(self):
        for given in ("", "gzip", "zstd"):
            answer = self.write(up((1.0, NOW_MS)), headers={**_HEADERS, "Content-Encoding": given})
            self.assertEqual((415, "snappy"), (answer.status_code, answer.headers["Accept-Encoding"]))


class Version2Test(RemoteWriteCase):
    headers = {**_HEADERS, "Content-Type": "application/x-protobuf;proto=io.prometheus.write.v2.Request"}  # noqa: RUF012

    def written(self, answer):
        kinds = ("Samples", "Histograms", "Exemplars")
        return [answer.headers.get(f"X-Prometheus-Remote-Write-{kind}-Written") for kind in kinds]

    def test_the_response_has_the_number_of_stored_samples(self):
        labels = {"__name__": "up", "job": "a"}
        answer = self.write(request_2((labels, [(1.0, NOW_MS), (2.0, NOW_MS + 1)])), headers=self.headers)
        self.assertEqual((204, ["2", "0", "0"]), (answer.status_code, self.written(answer)))
        self.write(up((1.0, NOW_MS), (2.0, NOW_MS + 1), job="a"))
        ids = [dict(record.headers)["message-id"] for record in self.records()]
        self.assertEqual((4, 2), (len(ids), len(set(ids))))  # the same samples in version 1 have the same ids

    def test_valid_samples_are_stored_and_counted_before_invalid_ones_are_refused(self):
        answer = self.write(request_2(({"__name__": "up"}, [(1.0, NOW_MS), (1.0, 5)])), headers=self.headers)
        self.assertEqual((400, ["1", "0", "0"]), (answer.status_code, self.written(answer)))
        self.assertIn("1 of 2 samples were refused; the others are stored", self.message(answer))

    def test_an_empty_request_is_accepted(self):
        answer = self.write(b"", headers=self.headers)
        self.assertEqual((204, ["0", "0", "0"]), (answer.status_code, self.written(answer)))

    def test_a_request_of_version_1_gets_no_such_headers(self):
        self.assertEqual([None] * 3, self.written(self.write(up((1.0, NOW_MS)))))

    def test_a_symbol_in_too_many_labels_is_413(self):
        labels = {"__name__": "up", "a": "x" * 2**16}
        answer = self.write(request_2(*[(labels, [(1.0, NOW_MS)])] * 300), headers=self.headers)
        self.assertEqual(413, answer.status_code)


class HostileTest(RemoteWriteCase):
    def test_a_claimed_size_above_the_limit_is_413_before_it_is_decompressed(self):
        for size in (2**32 - 1, 6 * 2**20):
            self.assertEqual(413, self.write(raw=number(size) + b"\x00a").status_code)
        self.assertEqual(413, self.write(up(*[(1.0, NOW_MS)] * 20_001)).status_code)

    def test_invalid_blocks_are_400(self):
        block = bytes(cramjam.snappy.compress_raw(up((1.0, NOW_MS))))
        for raw in (
            b"\xff" * 20, number(2**40), b"\x05", block[:-1], block + b"\x00a", b"\x7f" + block[1:],
            number(100) + b"\x00a\xfe\x64\x00", number(100) + b"\xfe\x01\x00",
        ):  # fmt: skip
            self.assertEqual(400, self.write(raw=raw).status_code, raw)

    def test_overlapping_copies_are_decompressed(self):
        body = part(3, b"a" * 1000)
        self.assertEqual(204, self.write(body).status_code)

    def test_other_messages_are_400(self):
        for body in (b"\x0b" * 1000, b"\x0a\xff\xff\xff\xff\x07", part(1, part(1, part(1, b"\x08")))[:-1], b'{"a": 1}'):
            answer = self.write(body)
            self.assertEqual(400, answer.status_code)
            self.assertIn("protobuf", self.message(answer))

    def test_a_million_labels_are_400(self):
        labels = b"".join(label(str(number), "") for number in range(300_000))
        answer = self.write(part(1, labels + sample(1.0, NOW_MS)))
        self.assertEqual(400, answer.status_code)
        self.assertLess(len(answer.content), 5000)
