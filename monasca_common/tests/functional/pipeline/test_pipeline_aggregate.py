# SPDX-License-Identifier: Apache-2.0
"""The job aggregate with a real Kafka and Spark publishes the rows of the plain reference."""

import json
from unittest import mock

import confluent_kafka
from testtools.matchers import StartsWith

from monasca_common.kafka import failpoints
from monasca_common.kafka.processor import dead_letters
from monasca_common.pipeline.aggregate.periods import PeriodPublisher
from monasca_common.pipeline.backfill.batch import Backfill
from monasca_common.tests.functional.pipeline.pipeline_case import (
    MINUTE_MS,
    NOON_MS,
    CpuCase,
    KafkaPipelineCase,
    SharedSpark,
    cpu,
    expected,
)
from monasca_common.tests.periodic import periodic
from monasca_common.tests.unit.pipeline.pipeline_case import (
    SHIPPED,
    envelope,
    golden,
    pre_row,
    shipped_row,
    specifications,
)

POD = "pod.net.in_bytes_sec"
CORES, IDLE = "cpu.total_logical_cores", "cpu.idle_perc"
GROUPED = ["tenant_id", "dimensions#app", "dimensions#namespace", "dimensions#pod_name"]


def shipped(name):
    return [json.loads(line) for line in SHIPPED.joinpath(name).read_text().splitlines()]


def first_stages():
    """Return the first stages of the golden data, each with its own name, as pre-transform rows and transform rows."""
    rows, fed = [], {}

    def add(name, metric_id, *event_types, **parameters):
        row = shipped_row(metric_id, **{"aggregated_metric_name": name, **parameters})
        rows.append(row | {"metric_id": name})
        for event_type in event_types:
            fed.setdefault(event_type, []).append(name)

    for operation in ("latest", "oldest", "max", "min", "avg", "sum"):
        add(f"mem_{operation}", "mem_total_all", "mem.total_mb", usage_fetch_operation=operation)
    add("cores_host", "cpu_total_host", CORES)
    add("cores_all", "cpu_total_all", CORES)
    add("util_host", "cpu_util_host", CORES, IDLE)
    for operation in ("avg", "latest", "oldest"):
        add(f"util_{operation}", "cpu_util_all", CORES, IDLE, usage_fetch_operation=operation)
    for name, by in {"nothing": [], "namespace": ["dimensions#namespace"], "app": ["dimensions#app"]}.items():
        add(
            f"pod_{name}",
            "mem_total_all",
            POD,
            aggregation_group_by_list=GROUPED,
            setter_rollup_group_by_list=by,
            dimension_list=["aggregation_period", *GROUPED[1:]],
        )
    return [pre_row(event_type, *names, required=["creation_time"]) for event_type, names in fed.items()], rows


class GoldenTest(KafkaPipelineCase):
    """Metrics of real clouds are sent through Kafka; compare unit/pipeline/aggregate/test_golden.py."""

    # Rule 34
    def test_both_stages_of_the_golden_data_equal_the_reference(self):
        pre_rows, rows = first_stages()
        shipped_pre_rows, shipped_rows = shipped("pre_transform_specs.jsonl"), shipped("transform_specs.jsonl")
        fed = {row["event_type"]: row["metric_id_list"] for row in pre_rows}
        # An event type has one row, so the rows of shipped event types also get the names of the first stages.
        for row in shipped_pre_rows:
            row["metric_id_list"] += fed.pop(row["event_type"], [])
        pre_rows = shipped_pre_rows + [row for row in pre_rows if row["event_type"] in fed]
        rows += shipped_rows
        specs = specifications(pre_rows, rows)
        values = golden("cpu_metrics.jsonl") + golden("mem_and_pod_metrics.jsonl")
        messages = self.publish(values)
        aggregation = self.aggregation(specs)

        report = aggregation.step()

        self.assertEqual((109, 0, 0), (report.done, report.left, report.results["rejected"]))
        found = self.stored(specs)
        self.assertEqual(expected(pre_rows, rows, messages), found)
        self.assert_golden({(key[0], dict(key[2:]).get("host")): row for key, row in found.items()}, found)
        # Published aggregates are in the topic that the job reads, and are ignored.
        self.assertEqual(len(found), report.results["published_messages"])
        again = aggregation.step()
        self.assertEqual(
            (len(found), 0, 0), (again.done, again.results["records"], again.results["published_messages"])
        )
        self.assertEqual([], self.read(self.dlq, 1))
        self.spoil()
        self.backfill(aggregation, values)
        self.until_quiet(aggregation)
        self.assertEqual(found, self.stored(specs))

    def spoil(self):
        with self.offset_store.writing() as connection:
            connection.exec_driver_sql("UPDATE aggregate_usage SET record_count = record_count + 1, sums = '7e6'")
            connection.exec_driver_sql("UPDATE aggregate_usage SET oldest_value = 5, latest_value = 6")

    def backfill(self, aggregation, values):
        """Run a backfill of all periods of these specifications."""
        times = [json.loads(value)["metric"]["timestamp"] for value in values]
        spark = self.useFixture(SharedSpark()).session
        settings, topic = aggregation._partials._settings, aggregation._batches._topic
        backfill = Backfill(spark, settings, topic, self.offset_store, 86_400_000)
        report = backfill.run(int(min(times)), int(max(times)) + 1)
        self.assertGreater(report.results["periods"], 0)

    def assert_golden(self, of, found):
        memory = {"latest": 1024, "oldest": 4096, "max": 8192, "min": 1024, "avg": 3840, "sum": 15360}
        for operation, quantity in memory.items():
            ((row,),) = [[row for key, row in found.items() if key[0] == f"mem_{operation}"]]
            self.assertEqual((quantity, "4", "2016-01-20 16:40:00", "2016-01-20 16:40:46"), row)
        hosts = ("test-cp1-comp0333-mgmt", "test-cp1-comp0027-mgmt")
        self.assertEqual([(9, "6"), (6, "7")], [of["cores_host", host][:2] for host in hosts])
        self.assertEqual((15, "13"), of["cores_all", "all"][:2])
        self.assertEqual([4.9665, 2.1677], [round(of["util_host", host][0], 4) for host in hosts])
        for operation, quantity in {"avg": 7.134214, "latest": 7.77, "oldest": 9.52}.items():
            self.assertEqual((quantity, "13"), of[f"util_{operation}", "all"][:2])
        pods = {
            (key[0], dict(key[2:])["namespace"], dict(key[2:])["app"]): row
            for key, row in found.items()
            if key[0].startswith("pod_")
        }
        self.assertEqual((145.88, "6"), pods["pod_nothing", "all", "all"][:2])
        self.assertEqual((22.94, "3"), pods["pod_namespace", "website", "all"][:2])
        self.assertEqual((122.94, "3"), pods["pod_app", "all", "junk"][:2])
        # The second stages as shipped.
        self.assertEqual((14.75, "13"), of["cpu.total_logical_cores_agg", "all"][:2])
        self.assertEqual((7.321444, "13"), of["cpu.utilized_logical_cores_agg", "all"][:2])
        self.assertEqual((3840, "4"), of["mem.total_mb_agg", "all"][:2])


@periodic("GoldenTest runs the same test on SQLite, and PostgresqlGoldenMergeTest merges the same data")
class GoldenPostgresqlTest(GoldenTest):
    """The executors stage the rows."""

    database = "postgresql"


class CorrectionTest(CpuCase):
    # Rule 31
    def test_late_data_corrects_published_rows(self):
        self.send(cpu(1, 1), cpu(2, 2, "b"))
        job = self.job()
        job.step()
        early = self.outputs(self.specs)
        self.send(cpu(0, 40), cpu(-60, 3))
        job.step()

        self.assert_exact()
        late = [
            (message_id, one)
            for message_id, one in self.outputs(self.specs)[len(early) :]
            if one["metric"]["timestamp"] == NOON_MS
        ]
        before = {_series(one): (message_id, one["creation_time"]) for message_id, one in early}
        corrected = {_series(one): (message_id, one["creation_time"]) for message_id, one in late}
        self.assertEqual(set(before), set(corrected))
        for series, (_, version) in corrected.items():
            self.assertGreater(version, before[series][1])
        # Host b has the same values as before, so its row is the same with a newer version.
        self.assertNotEqual(before["cpu_sum", None][0], corrected["cpu_sum", None][0])
        self.assertNotEqual(before["cpu_host", "a"][0], corrected["cpu_host", "a"][0])
        self.assertEqual(before["cpu_host", "b"][0], corrected["cpu_host", "b"][0])

    def test_an_unchanged_row_is_not_published_again(self):
        self.send(cpu(1, 1))
        job = self.job()
        self.assertEqual(2, self.until_quiet(job)["published_messages"])
        self.send(envelope("of no interest"))
        again = self.until_quiet(job)
        self.assertEqual((1, 0), (again["offsets"], again["published_messages"]))
        self.assertEqual(0, self.until_quiet(self.job())["published_messages"])  # nor in another run

    # Rule 30
    def test_delivered_messages_that_were_not_recorded_are_repeated_with_their_ids(self):
        self.send(cpu(1, 1), cpu(2, 2, "b"))
        job = self.job()
        with failpoints.armed("pipeline.before_clearing", "raise"):
            self.assertRaises(failpoints.FailPointReached, job.step)
        first = self.outputs(self.specs)
        self.assertNotEqual([], first)
        self.clock.now_ms += 60 * MINUTE_MS  # nor later
        with mock.patch.object(PeriodPublisher, "_close"):
            job.step()
        every = self.outputs(self.specs)
        self.assertEqual([2] * len(first), [every.count(one) for one in first])
        self.assertEqual(3, len({message_id for message_id, _ in every}))
        self.assertEqual(3, len({json.dumps(one) for _, one in every}))

    # Rule 30
    def test_a_period_is_provisional_until_its_end(self):
        self.send(cpu(1, 1))
        job = self.job(slack_seconds=600)
        for minutes, published in ((0, 2), (19, 0), (20, 2), (60, 0)):  # end: 13:00; slack: ten minutes
            self.clock.now_ms = NOON_MS + (50 + minutes) * MINUTE_MS
            self.assertEqual(published, self.until_quiet(job)["published_messages"], minutes)
        (open_id, open_), _, (closed_id, closed), _ = self.outputs(self.specs)
        self.assertEqual("true", open_["metric"]["value_meta"].pop("provisional"))
        self.assertEqual(open_["metric"], closed["metric"])
        self.assertGreater(closed["creation_time"], open_["creation_time"])
        self.assertNotEqual(open_id, closed_id)

    def test_final_rows_are_published_once_and_corrected_by_late_data(self):
        self.send(cpu(1, 1))
        job = self.job(emit="final", slack_seconds=600)
        self.assertEqual(0, self.until_quiet(job)["published_messages"])
        self.clock.now_ms = NOON_MS + 70 * MINUTE_MS
        self.assertEqual(2, self.until_quiet(job)["published_messages"])
        self.assert_exact()
        self.send(cpu(3, 7))
        self.assertEqual(2, self.until_quiet(job)["published_messages"])
        self.assert_exact()
        self.assertFalse(any("provisional" in one["metric"]["value_meta"] for _, one in self.outputs(self.specs)))


class InputTest(CpuCase):
    # Rule 32
    def test_an_invalid_record_is_a_dead_letter_with_its_reason_and_origin(self):
        day_ms = 24 * 60 * MINUTE_MS
        bad = {
            "malformed: is not JSON": [b"{", b"\xff"],
            "malformed: ": [None],
            "malformed: metric.value": [envelope("cpu", NOON_MS, "1")],
            "malformed: metric.dimensions": [envelope("cpu", NOON_MS, dimensions={"hostname": 7})],
            "too_new: ": [cpu(60.1, 1), envelope("cpu", 4 * 10**12)],
            "too_old: ": [envelope("cpu", self.clock.now_ms - day_ms - 1), envelope("cpu", 5)],
        }
        reasons = {value: reason for reason, values in bad.items() for value in values}
        self.send(cpu(1, 1), cpu(60, 2), envelope("cpu", self.clock.now_ms - day_ms))
        origins = {(at, offset): value for value, at, offset in self.publish(reasons)}
        # Metrics without a specification are not validated.
        self.publish([envelope("unknown", 5), *(envelope(f"event.{number}") for number in range(300))])

        report = self.job(retention_days=1).step()

        self.assertEqual((len(reasons), len(reasons) + 304), (report.results["rejected"], report.done))
        letters = self.read(self.dlq, 1)
        self.assertEqual(len(reasons), len(letters))
        for letter in letters:
            headers = dict(letter.headers())
            origin = (int(headers[dead_letters.ORIGIN_PARTITION]), int(headers[dead_letters.ORIGIN_OFFSET]))
            self.assertEqual(origins.pop(origin), letter.value())
            self.assertThat(headers[dead_letters.ERROR_TEXT].decode(), StartsWith(reasons[letter.value()]))
            self.assertEqual(self.topic.encode(), headers[dead_letters.ORIGIN_TOPIC])
            self.assertEqual(f"{self.group}/{self.topic}/{origin[0]}/{origin[1]}".encode(), headers["message-id"])
        self.assert_exact()

    def test_a_dead_letter_too_large_with_its_origin_is_truncated(self):
        self.send(cpu(1, 1))
        self.publish([b"x" * 1_048_450])
        report = self.job().step()
        self.assertEqual((2, 1), (report.done, report.results["rejected"]))
        (letter,) = self.read(self.dlq, 1)
        self.assertEqual(b"1048450", dict(letter.headers())[dead_letters.VALUE_CUT_FROM])
        self.assert_exact()

    # Rule 32
    def test_metrics_of_real_clouds_are_accepted(self):
        self.send(
            envelope("cpu", NOON_MS + 0.75, 1, dimensions={"hostname": "a"}, value_meta=None),
            envelope("cpu", float(NOON_MS), 2, dimensions={"hostname": "a", "zone": None}, without=["value_meta"]),
            envelope("cpu", NOON_MS, 4, without=["dimensions", "meta", "creation_time"]),
        )
        self.assertEqual(0, self.job().step().results["rejected"])
        self.assert_exact()

    # Rule 37
    def test_aborted_records_do_not_count_and_markers_are_not_a_gap(self):
        producer = confluent_kafka.Producer(
            {**self.cluster.direct_options(), "transactional.id": self.topic, "linger.ms": 0}
        )
        producer.init_transactions()
        offset = 0
        for value, is_kept in ((1, True), (2, False), (4, True), (8, False)):
            producer.begin_transaction()
            producer.produce(self.topic, cpu(1, value), partition=0)
            producer.flush()  # an abort drops messages that are not yet in the log
            (producer.commit_transaction if is_kept else producer.abort_transaction)()
            self.sent += [(cpu(1, value), 0, offset)] * is_kept
            offset += 2  # the marker also has an offset
        job = self.job()
        self.assertEqual({"offsets": 8, "records": 4}, _some(self.until_quiet(job), "offsets", "records", less=2))
        self.assert_exact()

    def test_the_number_of_offsets_of_a_batch_is_limited(self):
        self.send(*(cpu(number, number) for number in range(10)), partition=0)
        self.send(cpu(11, 5), partition=1)
        job = self.job(max_offsets_per_trigger=4)
        report = job.step()
        self.assertEqual((4, 7), (report.done, report.left))
        self.until_quiet(job)
        self.assert_exact()


def _series(envelope_):
    metric = envelope_["metric"]
    return metric["name"], metric["dimensions"].get("host") if metric["name"] == "cpu_host" else None


def _some(counts, *names, less=0):
    """``less``: the offsets of published aggregates."""
    return {name: counts[name] - (less if name == "offsets" else 0) for name in names}
