# SPDX-License-Identifier: Apache-2.0
import io
import json
import math
from dataclasses import replace
from pathlib import Path

import fastavro
from hypothesis import given
from hypothesis import strategies as st
from oslotest import base

from monasca_common.alarms.transitions import AlarmChange
from monasca_common.models import alarm, avro, event, json_text, log, metric
from monasca_common.models.errors import InvalidEnvelope
from monasca_common.tests.unit.alarms import test_transitions

GOLDEN = Path(__file__).parent / "golden"
SCHEMAS = Path(avro.__file__).parent / "schemas"
KINDS = (avro.METRICS, avro.LOGS, avro.EVENTS, avro.TRANSITIONS)
CHANGE = replace(
    test_transitions.CHANGE,
    actions_enabled=False,
    lifecycle_state="open",
    sub_alarms=[{"subAlarmExpression": {"operator": "GT"}, "currentValues": [1.5]}],
)


def posted(model, body):
    post = model.parse_post(json.dumps(body).encode())
    return model.envelopes(post.valid, "tenant", "region", 1_700_000_000.125)


METRICS = posted(
    metric,
    [
        {"name": "cpu", "timestamp": 1_700_000_000_000, "value": 0.1},
        {"name": "m\xfcll", "dimensions": {"b": "2", "a": "\u20ac"}, "timestamp": 0, "value": -1e300},
        {"name": "x", "dimensions": {}, "timestamp": 5, "value": 2**60, "value_meta": {"k": "v"}},
    ],
)
METRICS += [METRICS[0].replace(b":0.1,", b':"%b",' % text) for text in (b"NaN", b"Infinity", b"-Infinity")]
LOGS = posted(
    log,
    {
        "dimensions": {"hostname": "h"},
        "logs": [
            {"message": "m", "timestamp": 5},
            {"message": "", "level": "ERROR", "nested": {"a": [1, None, 1.5]}},
        ],
    },
)
EVENTS = posted(
    event,
    {
        "events": [
            {"event": {"event_type": "e", "payload": {"a": {"b": [1, 2.5, None, "x"]}}}, "dimensions": {"d": "v"}},
            {"event": {"event_type": "e", "timestamp": 7}},
        ]
    },
)
ENVELOPES = {avro.METRICS: METRICS, avro.LOGS: LOGS, avro.EVENTS: EVENTS, avro.TRANSITIONS: [CHANGE.message]}
DECODE_ROWS = {
    avro.METRICS: metric.MetricDecoder().decode_all,
    avro.LOGS: log.decode_all,
    avro.EVENTS: event.decode_all,
    avro.TRANSITIONS: alarm.decode_all,
}


def versions(kind):
    """Return the shipped versions of a schema."""
    return [fastavro.parse_schema(json.loads(path.read_text())) for path in sorted(SCHEMAS.glob(f"{kind}-*.avsc"))]


class EnvelopesTest(base.BaseTestCase):
    def test_envelopes_in_avro_have_the_rows_of_envelopes_in_json(self):
        for kind, envelopes in ENVELOPES.items():
            decode = avro.decoder(avro.schema(kind))
            read = [decode(avro.encode(kind, envelope)) for envelope in envelopes]
            expected = DECODE_ROWS[kind](envelopes)
            self.assertEqual(len(envelopes), len(expected.rows))
            self.assertEqual(expected, DECODE_ROWS[kind](read), kind)

    def test_golden_metrics_have_the_same_rows(self):
        decode = avro.decoder(avro.schema(avro.METRICS))
        for path in sorted(GOLDEN.glob("*metrics.jsonl")):
            lines = path.read_bytes().splitlines()
            envelopes = [line for line in lines if not DECODE_ROWS[avro.METRICS]([line]).errors]
            self.assertNotEqual([], envelopes)
            texts = [envelope for envelope in envelopes if all_text(json.loads(envelope))]
            read = [decode(avro.encode(avro.METRICS, envelope)) for envelope in texts]
            self.assertEqual(DECODE_ROWS[avro.METRICS](texts), DECODE_ROWS[avro.METRICS](read))

    def test_a_transition_keeps_what_notifications_read(self):
        decode = avro.decoder(avro.schema(avro.TRANSITIONS))
        self.assertEqual(CHANGE, AlarmChange.read(decode(avro.encode(avro.TRANSITIONS, CHANGE.message))))


def all_text(envelope):
    meta = envelope["metric"].get("value_meta") or {}
    return all(isinstance(value, str) for value in meta.values())


class CompatibilityTest(base.BaseTestCase):
    def test_the_newest_version_reads_records_of_every_shipped_version(self):
        for kind in KINDS:
            for writer in versions(kind):
                decode = avro.decoder(writer)
                for envelope in ENVELOPES[kind]:
                    record = avro.encode(kind, envelope)
                    older = fastavro.schemaless_reader(io.BytesIO(record), avro.schema(kind), writer)
                    written = io.BytesIO()
                    fastavro.schemaless_writer(written, writer, older)
                    self.assertEqual([], list(DECODE_ROWS[kind]([decode(written.getvalue())]).errors))

    def test_every_kind_has_a_shipped_version(self):
        self.assertTrue(all(map(versions, KINDS)))

    def test_every_shipped_version_reads_records_of_the_newest(self):
        for kind in KINDS:
            for reader in versions(kind):
                for envelope in ENVELOPES[kind]:
                    record = avro.encode(kind, envelope)
                    found = fastavro.schemaless_reader(io.BytesIO(record), avro.schema(kind), reader)
                    read = json_text.write(avro._KINDS[kind].to_envelope(found))
                    self.assertEqual([], list(DECODE_ROWS[kind]([read]).errors))

    def test_a_field_that_a_later_version_adds_is_ignored(self):
        later = json.loads(avro.schema_text(avro.METRICS))
        later["fields"].append({"name": "unit", "type": "string", "default": ""})
        writer = fastavro.parse_schema(later)
        written = io.BytesIO()
        fastavro.schemaless_writer(written, writer, {**json.loads(METRICS[0]), "unit": "ms"})
        read = avro.decoder(writer)(written.getvalue())
        self.assertEqual(DECODE_ROWS[avro.METRICS]([METRICS[0]]), DECODE_ROWS[avro.METRICS]([read]))


class RefusedTest(base.BaseTestCase):
    def test_a_truncated_field_of_another_version_is_refused(self):
        writer = json.loads(avro.schema_text(avro.METRICS))
        writer["fields"].append({"name": "more", "type": {"type": "array", "items": "double"}})
        record = avro.encode(avro.METRICS, METRICS[0]) + b"\xfe" * 3 + b"\x07\0"
        error = self.assertRaises(InvalidEnvelope, avro.decoder(fastavro.parse_schema(writer)), record)
        self.assertIn("EOFError", str(error))

    def refused(self, kind, record):
        return str(self.assertRaises(InvalidEnvelope, avro.decoder(avro.schema(kind)), record))

    def test_a_schema_of_another_record_is_refused(self):
        for writer in ({"type": "record", "name": "other.Thing", "fields": []}, ["null", "string"], "string"):
            error = self.assertRaises(InvalidEnvelope, avro.decoder, fastavro.parse_schema(writer))
            self.assertIn("monasca.MetricEnvelope", str(error))

    def test_a_truncated_record_is_refused_without_its_text(self):
        for kind, envelopes in ENVELOPES.items():
            record = avro.encode(kind, envelopes[0])
            for length in range(len(record)):
                self.assertIn("is not a record of monasca.", self.refused(kind, record[:length]))

    def test_bytes_after_the_record_are_refused(self):
        record = avro.encode(avro.METRICS, METRICS[0])
        self.assertEqual(
            "has 2 bytes after its record of monasca.MetricEnvelope", self.refused(avro.METRICS, record + b"xy")
        )

    def test_a_member_that_is_not_json_is_refused(self):
        for kind, path, text in (
            (avro.LOGS, ("log", "fields"), "{"),
            (avro.LOGS, ("log", "fields"), "[1]"),
            (avro.EVENTS, ("event", "payload"), "nothing"),
            (avro.TRANSITIONS, ("alarm_transitioned", "metrics"), "["),
        ):
            record = avro.encode(kind, ENVELOPES[kind][0])
            found = fastavro.schemaless_reader(io.BytesIO(record), avro.schema(kind), None)
            found[path[0]][path[1]] = text
            written = io.BytesIO()
            fastavro.schemaless_writer(written, avro.schema(kind), found)
            self.assertIn("is not a record of", self.refused(kind, written.getvalue()))

    def test_a_value_that_json_does_not_have_is_a_row(self):
        envelope = json.loads(METRICS[0])
        for value in (math.nan, math.inf):
            envelope["metric"]["value"] = value
            written = io.BytesIO()
            fastavro.schemaless_writer(written, avro.schema(avro.METRICS), envelope)
            read = avro.decoder(avro.schema(avro.METRICS))(written.getvalue())
            self.assertEqual([repr(value)], [repr(row.value) for row in DECODE_ROWS[avro.METRICS]([read]).rows])

    @given(st.sampled_from(KINDS), st.binary(max_size=200))
    def test_any_bytes_are_a_row_or_refused(self, kind, record):
        try:
            read = avro.decoder(avro.schema(kind))(record)
        except InvalidEnvelope:
            return
        decoded = DECODE_ROWS[kind]([read])
        self.assertEqual(1, len(decoded.rows) + len(decoded.errors))
