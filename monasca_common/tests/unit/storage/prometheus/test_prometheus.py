# SPDX-License-Identifier: Apache-2.0
"""The driver with receivers that behave like Prometheus, and like other products."""

import json
import math
import struct
import threading
import urllib.parse
from collections import Counter

import cramjam
import fixtures
from oslotest import base

from monasca_common.kafka.errors import ConfigurationError
from monasca_common.kafka.message import TopicPartition
from monasca_common.models import remote_write
from monasca_common.models.rows import Measurement
from monasca_common.models.series import Series, series_id
from monasca_common.models.write_request import encoded_labels, encoded_row
from monasca_common.storage import load_storage
from monasca_common.storage.base import Capability, Claim, Kind, Rows, Written
from monasca_common.storage.errors import (
    NotSupported,
    RangeBeyondNext,
    RowsRefused,
    StorageUnavailable,
    TooMuchAtOnce,
    UnsafeReceiver,
)
from monasca_common.storage.plugins import open_storage
from monasca_common.storage.prometheus.labels import NAME, labels_of
from monasca_common.storage.settings import StorageSettings
from monasca_common.tests.contracts.storage import FixedClock
from monasca_common.tests.contracts.storage.database import NOW_MS
from monasca_common.tests.served import body_of, http_server, respond, serve
from monasca_common.tests.unit.kafka.config_case import ConfigurationTestCase
from monasca_common.tests.unit.models.write_request import STALE, series
from monasca_common.tests.unit.storage.sqlite_case import copy_schema

_DATA = {"storage.tsdb.path": "data/"}


class FakeReceiver:
    """Stores samples like Prometheus 2.42: one refused sample refuses its whole request.

    ``answer``: returns ``(status, text, headers)`` for the samples of a request, ``"cut"`` to store them without an
    answer, or ``None`` to store them.
    """

    def __init__(self):
        self.server = http_server(self.respond, keep_alive=True)
        self.server.handle_error = lambda *_: None  # these tests disconnect clients on purpose
        self.window = "storage:\n  tsdb:\n    out_of_order_time_window: 2h\n"
        self.flags = _DATA
        self.requests = []
        self.samples = {}
        self.writes = Counter()
        self.answer = lambda samples: None

    def write(self, headers, body):
        found = list(_samples(bytes(cramjam.snappy.decompress_raw(body))))
        self.requests.append((headers, found))
        answer = self.answer(found)
        if answer is not None and answer != "cut":
            return answer
        for key, value in found:
            if key in self.samples and repr(self.samples[key]) != repr(value):
                return 400, "duplicate sample for timestamp", {}
        self.samples.update(found)
        self.writes.update(key for key, _ in found)
        return answer or (204, "", {})

    def query(self, path):
        parameters = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(path).query))
        time_ms = round(float(parameters["time"]) * 1000)
        result = [
            {"metric": dict(labels), "values": [[at / 1000, repr(value)]]}
            for (labels, at), value in self.samples.items()
            if at == time_ms
        ]
        return {"resultType": "matrix", "result": result}

    def read(self, path):
        if path.startswith("/api/v1/query"):
            data = self.query(path)
        else:
            data = {"/api/v1/status/flags": self.flags, "/api/v1/status/config": {"yaml": self.window}}.get(path)
        if data is None:
            return 404, "404 page not found", {}
        return 200, json.dumps({"status": "success", "data": data}), {}

    def respond(self, handler):
        is_write = handler.command == "POST"
        answer = self.write(dict(handler.headers), body_of(handler)) if is_write else self.read(handler.path)
        if answer == "cut":
            handler.close_connection = True
        else:
            status, text, headers = answer
            respond(handler, status, text.encode(), headers)


def _samples(request):
    """Yield the key (labels and time) and the value of each sample, read with the parser of the API's intake."""
    for _, content in remote_write.fields(request):
        labels = []
        for key, field in remote_write.fields(content):
            if key == 0x0A:
                labels.append(tuple(each.decode() for each in remote_write._pair(field)))
            else:
                found = dict(remote_write.fields(field))  # fields with the value 0 are not written
                time_ms, _ = remote_write.varint(found.get(0x10, b"\0"), 0)
                yield (tuple(labels), time_ms), struct.unpack("<d", found.get(0x09, bytes(8)))[0]


def _series(name="cpu", tenant="t", region="r", **dimensions):
    return Series(series_id(tenant, region, name, dimensions), tenant, region, name, dimensions)


def _row(number, value=None, *, time_ms=None, version=1, meta=None, **dimensions):
    at = NOW_MS + number if time_ms is None else time_ms
    return Measurement(_series(**dimensions), at, float(number) if value is None else value, meta, version)


def _claim(start, end):
    return Claim("g", "metrics", 0, "id", start, end)


class PrometheusTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.receiver = FakeReceiver()
        self.addCleanup(serve(self.receiver.server))
        path = f"{self.useFixture(fixtures.TempDir()).path}/positions.sqlite"
        copy_schema(path)
        self.positions = f"sqlite:///{path}"

    def storage(self, parameters="", **changes):
        url = f"prometheus://127.0.0.1:{self.receiver.server.server_port}/api/v1/write{parameters}"
        settings = StorageSettings("prometheus", url, positions_connection=self.positions, **changes)
        return open_storage(settings, clock=FixedClock())

    def writer(self, parameters="", **changes):
        writer = self.storage(parameters, **changes).open_writer()
        self.addCleanup(writer.close)
        return writer

    def write(self, writer, rows, start=0):
        end = start + len(rows)
        return writer.write(_claim(start, end), Rows(Kind.METRICS, rows, range(start, end)))

    def next_offset(self, writer):
        return writer.next_offsets("g", {TopicPartition("metrics", 0): "id"}).get(TopicPartition("metrics", 0))

    def values(self):
        return [value for _, value in sorted((at, value) for (_, at), value in self.receiver.samples.items())]

    def test_rows_are_written_in_order_of_time_and_then_the_offset_is_stored(self):
        writer = self.writer()
        self.assertEqual(Written(stored=3), self.write(writer, [_row(2), _row(0), _row(1)]))
        [(headers, samples)] = self.receiver.requests
        self.assertEqual([0.0, 1.0, 2.0], [value for _, value in samples])
        self.assertEqual(((NAME, "cpu"), ("region", "r"), ("tenant", "t")), samples[0][0][0])
        self.assertEqual("0.1.0", headers["X-Prometheus-Remote-Write-Version"])
        self.assertEqual(3, self.next_offset(writer))

    def test_an_unacknowledged_write_stores_no_offset_and_its_repeat_stores_no_row_twice(self):
        writer = self.writer()
        self.write(writer, [_row(0)])
        self.receiver.answer = lambda samples: "cut"
        self.assertRaises(StorageUnavailable, self.write, writer, [_row(1), _row(2)], 1)
        self.assertEqual(1, self.next_offset(writer))
        self.receiver.answer = lambda samples: None
        self.write(self.writer(), [_row(1), _row(2)], 1)
        self.assertEqual([0.0, 1.0, 2.0], self.values())
        self.assertEqual(3, self.next_offset(writer))

    def test_rows_below_the_stored_offset_are_not_sent(self):
        writer = self.writer()
        self.write(writer, [_row(0), _row(1)])
        self.assertEqual(Written(stored=1, skipped=2), self.write(writer, [_row(0), _row(1), _row(2)]))
        self.assertEqual(Written(skipped=2), self.write(writer, [_row(0), _row(1)]))
        self.assertEqual(2, len(self.receiver.requests))

    def test_a_claim_beyond_the_stored_offset_sends_nothing(self):
        writer = self.writer()
        self.write(writer, [_row(0)])
        self.assertRaises(RangeBeyondNext, self.write, writer, [_row(5)], 5)
        self.assertEqual(1, len(self.receiver.requests))

    def test_offsets_can_be_accounted_and_reset(self):
        writer = self.writer()
        writer.accounted(_claim(0, 4))
        self.assertEqual(4, self.next_offset(writer))
        partition = TopicPartition("metrics", 0)
        self.assertEqual({partition: 4}, writer.reset_offsets("g", {partition: 2}, {partition: "id"}))
        self.assertEqual(2, self.next_offset(writer))

    def test_the_greatest_version_of_a_series_and_time_is_sent(self):
        rows = [_row(0, 1.0), _row(0, 2.0, version=2), _row(0, 1.0), _row(0, 2.0, version=2)]
        self.assertEqual(Written(stored=1, repeated=1, conflicting=2), self.write(self.writer(), rows))
        self.assertEqual([2.0], self.values())

    def test_bad_samples_are_narrowed_and_the_others_are_stored(self):
        self.receiver.answer = lambda samples: (
            (400, "label too long", {}) if {3.0, 6.0} & {value for _, value in samples} else None
        )
        writer = self.writer()
        rows = [_row(n) for n in range(8)]
        refused = self.assertRaises(RowsRefused, self.write, writer, rows)
        self.assertEqual({3, 6}, refused.reasons.keys())
        self.assertIn("label too long", refused.reasons[3])
        self.assertEqual(0, self.next_offset(writer))
        self.assertEqual([0.0, 1.0, 2.0, 4.0, 5.0, 7.0], self.values())

    def refuse_older(self, status=400, text="out of order sample"):
        """Refuse samples that are older than the newest one."""

        def answer(samples):
            newest = max((at for _, at in self.receiver.samples), default=0)
            return (status, text, {}) if any(at < newest for (_, at), _ in samples) else None

        self.receiver.answer = answer

    def test_a_refused_repeat_counts_as_repeated_and_a_late_sample_is_refused(self):
        for status, text in ((400, "out of order sample"), (500, "too old sample"), (400, "out of bounds")):
            self.receiver.samples.clear()
            self.receiver.answer = lambda samples: None
            partition = TopicPartition("metrics", 0)
            writer = self.writer()
            writer.reset_offsets("g", {partition: 0}, {partition: "id"})
            self.write(writer, [_row(0), _row(1), _row(2)])
            writer.reset_offsets("g", {partition: 0}, {partition: "id"})
            self.refuse_older(status, text)
            self.assertEqual(Written(stored=1, repeated=2), self.write(writer, [_row(0), _row(1), _row(2)]))
            refused = self.assertRaises(RowsRefused, self.write, writer, [_row(-5), _row(3)], 3)
            self.assertEqual({0}, refused.reasons.keys())
            self.assertIn(text, refused.reasons[0])

    def test_another_value_of_a_stored_sample_counts_as_conflicting(self):
        writer = self.writer()
        self.write(writer, [_row(0, 1.0)])
        self.assertEqual(Written(stored=1, conflicting=1), self.write(writer, [_row(0, 2.0), _row(1)], 1))
        self.assertEqual([1.0, 1.0], self.values())

    def test_other_statuses_are_an_unavailable_receiver(self):
        writer = self.writer()
        for status, text in ((500, "oops"), (503, ""), (429, ""), (401, ""), (404, ""), (302, "")):
            self.receiver.answer = lambda samples, status=status, text=text: (status, text, {})
            error = self.assertRaises(StorageUnavailable, self.write, writer, [_row(0)])
            self.assertIn(str(status), str(error))
            self.assertIsNone(error.after_seconds)
        self.receiver.answer = lambda samples: (413, "", {})
        self.assertRaises(TooMuchAtOnce, self.write, writer, [_row(0)])
        for text in (
            "user=t: per-user series limit of 5 exceeded (err-mimir-max-series-per-user). To adjust it, configure …",
            "Client sent an HTTP request to an HTTPS server.",
            "<html><head><title>400 The plain HTTP request was sent to HTTPS port</title>",
        ):
            self.receiver.answer = lambda samples, text=text: (400, text, {})
            self.assertRaises(StorageUnavailable, self.write, writer, [_row(0)])
        self.assertEqual(0, self.next_offset(writer))

    def test_a_label_with_the_text_of_a_limit_does_not_block_the_partition(self):
        for labels in ("'U__cpu{a=\"err-mimir-tenant-\"}'", '{a="to an HTTPS server"}'):
            text = f"received a series whose number of labels exceeds the limit (actual: 31, limit: 30): {labels}"
            self.receiver.answer = lambda samples, text=text: (400, text, {})
            refused = self.assertRaises(RowsRefused, self.write, self.writer(), [_row(0)])
            self.assertIn("number of labels", refused.reasons[0])

    def test_retry_after_is_honoured_within_a_minute(self):
        writer = self.writer()
        for given, waited in (("7", 7.0), ("86400", 60.0), ("0", None), ("soon", None), ("²", None)):
            self.receiver.answer = lambda samples, given=given: (
                429,
                "",
                {"Retry-After": given.encode().decode("latin-1")},
            )
            self.assertEqual(waited, self.assertRaises(StorageUnavailable, self.write, writer, [_row(0)]).after_seconds)

    def test_a_silent_receiver_is_too_much_at_once_after_the_time_out(self):
        released = threading.Event()
        self.addCleanup(released.set)
        self.receiver.answer = lambda samples: released.wait(20) and None
        self.assertRaises(TooMuchAtOnce, self.write, self.writer(write_timeout_seconds=0.2), [_row(0)])

    def test_a_too_small_window_is_refused_with_the_remedy(self):
        for window in ("global: {}\n", "storage:\n  tsdb:\n    out_of_order_time_window: 59m59s\n"):
            self.receiver.window = window
            error = self.assertRaises(UnsafeReceiver, self.writer)
            self.assertIn("set it to at least 3600s", str(error))
        self.writer("?window=30m").close()
        self.receiver.window = "storage:\n  tsdb:\n    out_of_order_time_window: 1d1h\n"
        self.writer("?window=25h").close()

    def test_a_receiver_without_the_api_is_used_with_one_log_line(self):
        log = self.useFixture(fixtures.FakeLogger("monasca_common.storage.prometheus.receiver"))
        self.receiver.window, self.receiver.flags = "", None
        storage = self.storage()
        for _ in range(2):
            storage.open_writer().close()
        self.assertEqual(1, log.output.count("does not show its configuration"))

    def test_times_beyond_half_the_window_in_the_future_are_refused(self):
        refused = self.assertRaises(RowsRefused, self.write, self.writer(), [_row(1_801_000), _row(1_800_000)])
        self.assertEqual({0}, refused.reasons.keys())
        self.assertEqual([], self.receiver.requests)

    def test_tenants_are_headers_by_option(self):
        rows = [_row(0, tenant="a"), _row(1, tenant="b"), _row(2, tenant="a")]
        self.assertEqual(Written(stored=3), self.write(self.writer("?tenant=header"), rows))
        found = {headers["X-Scope-OrgID"]: [value for _, value in found] for headers, found in self.receiver.requests}
        self.assertEqual({"a": [0.0, 2.0], "b": [1.0]}, found)
        self.assertNotIn("tenant", dict(self.receiver.requests[0][1][0][0][0]))

    def test_a_tenant_that_a_header_cannot_express_is_refused(self):
        series = [Series(b"%d" % n, tenant, "r", "cpu", {}) for n, tenant in enumerate(("a b", " a", "a\nb", "ä", "Ā"))]
        rows = [Measurement(each, NOW_MS, 1.0, None, 1) for each in series]
        refused = self.assertRaises(RowsRefused, self.write, self.writer("?tenant=header"), rows)
        self.assertEqual({1, 2, 3, 4}, refused.reasons.keys())
        self.assertEqual([], self.receiver.requests)
        self.assertEqual(Written(stored=5), self.write(self.writer(), rows))

    def test_undeclared_kinds_and_reads_are_refused(self):
        storage = self.storage()
        self.assertEqual({Kind.METRICS}, storage.kinds)
        self.assertEqual({Capability.OFFSETS}, storage.capabilities)
        self.assertRaises(NotSupported, storage.open_reader)
        self.assertRaises(NotSupported, self.writer().write, _claim(0, 1), Rows(Kind.LOGS, [object()], [0], [b"i"]))
        self.assertTrue(storage.status().usable)

    def test_a_surrogate_is_refused(self):
        refused = self.assertRaises(
            RowsRefused,
            self.write,
            self.writer(),
            [Measurement(Series(b"s", "t", "r", "cpu", {"host": "\ud800"}), NOW_MS, 1.0, None, 1), _row(0)],
        )
        self.assertEqual({0}, refused.reasons.keys())


class SampleTest(base.BaseTestCase):
    def test_names_are_valid_in_prometheus_2_and_differ(self):
        for name, converted in {
            "cpu": "cpu",
            "cpu:idle_perc": "cpu:idle_perc",
            "cpu.idle_perc": "U__cpu_2e_idle__perc",
            "1st": "U___31_st",
            "größe": "U__gr_f6__df_e",
            "U__x": "U__U____x",
        }.items():
            self.assertEqual(converted, labels_of(_series(name), with_tenant=False)[NAME])
        labels = labels_of(_series(**{"a:b": "1", "a.b": "2", "a_b": "3", "empty": ""}), with_tenant=False)
        self.assertEqual({"U__a_3a_b": "1", "U__a_2e_b": "2", "a_b": "3", "region": "r", NAME: "cpu"}, labels)

    def test_dimensions_with_the_names_of_our_labels_keep_both(self):
        dimensions = {NAME: "1", "tenant": "2", "exported_tenant": "3"}
        labels = labels_of(Series(b"", "t", "r", "cpu", dimensions | {"region": "4"}), with_tenant=True)
        self.assertEqual(
            {
                NAME: "cpu",
                "tenant": "t",
                "region": "r",
                f"exported_{NAME}": "1",
                "exported_tenant": "2",
                "exported_exported_tenant": "3",
                "exported_region": "4",
            },
            labels,
        )
        self.assertEqual(sorted(labels), list(labels))

    def test_special_values_are_those_of_prometheus(self):
        labels = {NAME: "up", "host": "größe" * 40}
        for value, meta, expected in (
            (1.5, None, 1.5),
            (-math.inf, None, -math.inf),
            (math.nan, None, math.nan),
            (math.nan, '{"prometheus": "stale"}', STALE),
            (1.5, '{"prometheus":"stale"}', 1.5),
        ):
            for time_ms in (NOW_MS, -5):
                encoded = encoded_row(encoded_labels(labels), Measurement(None, time_ms, value, meta, 1))
                self.assertEqual(series(labels, (expected, time_ms)), encoded)


class ConfigurationTest(ConfigurationTestCase):
    def loaded(self, url, *lines):
        text = ["[storage]", "driver = prometheus", *lines, "[database]", f"connection = {url}"]
        return self.configured("\n".join([*text, "positions_connection = sqlite:////tmp/positions.sqlite"]) + "\n")

    def test_urls_are_checked_without_quoting_them(self):
        for url, rule in (
            ("prometheus://u:secret@127.0.0.1", "lacks a host or a path"),
            ("prometheus://127.0.0.1/api/v1/write?window=1", "window='1'"),
            ("prometheus://127.0.0.1/api/v1/write?window=0s", "window='0s'"),
            ("prometheus://127.0.0.1/api/v1/write?tenant=x", "tenant='x'"),
            ("prometheus://127.0.0.1/api/v1/write?other=x", "'other'"),
            ("prometheus://u:secret@receiver.example.org/api/v1/write", "sends a password"),
            ("prometheus://u:pa@secret@receiver.example.org/api/v1/write", "not written as %40"),
        ):
            refusal = self.refused(load_storage, self.loaded(url))
            self.assertIn(rule, refusal)
            self.assertNotIn("secret", refusal)
        load_storage(self.loaded("prometheus+https://u:secret@receiver.example.org/api/v1/write"))

    def test_positions_need_a_sql_database(self):
        for url in (None, "", "influxdb://h/d", "prometheus://h/api/v1/write"):
            settings = StorageSettings("prometheus", "prometheus://h/api/v1/write", positions_connection=url)
            self.assertIn("positions_connection", str(self.assertRaises(ConfigurationError, open_storage, settings)))

    def test_an_invalid_url_of_positions_is_refused_with_the_name_of_its_option(self):
        for url in ("sqlite://", "postgresql://u:p@ss@h/db"):
            settings = StorageSettings("prometheus", "prometheus://h/api/v1/write", positions_connection=url)
            refusal = str(self.assertRaises(ConfigurationError, open_storage, settings))
            self.assertTrue(refusal.startswith("positions_connection in group [database] "), refusal)
