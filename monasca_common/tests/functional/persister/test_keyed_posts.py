# SPDX-License-Identifier: Apache-2.0
"""Logs and events without their own time, posted repeatedly with keys at two hosts whose clocks are before and after
midnight, while answers are lost and workers of the persister die: each is one row."""

import functools
import time

import sqlalchemy as sa

from monasca_common.api import service
from monasca_common.kafka.message import TopicPartition
from monasca_common.tests.checker import each_once
from monasca_common.tests.functional.changed_command import command_after, patch
from monasca_common.tests.functional.persister.persister_case import NO_ALARMS, QUICK_SESSION_SECONDS, PersisterCase
from monasca_common.tests.kafka_proxy import ApiKey, Fault
from monasca_common.tests.periodic import periodic

_DAY_MS = 86_400_000
_BULKS = 8
_OF_A_BULK = 3
_PATHS = {"logs": "/v2.0/logs", "events": "/v1.0/events"}


def set_clock(now_ms):
    """Set the clock of an API. This is not a mutant."""
    patch(service, "make_app", functools.partial(service.make_app, now=lambda: now_ms / 1000))


class KeyedPosts:
    cluster_settings = {"proxied": True}  # noqa: RUF012  # as in its base
    session_seconds = QUICK_SESSION_SECONDS

    def setUp(self):
        super().setUp()
        self.topics = {table: self.fixture.topic(2) for table in _PATHS}
        for topic in self.topics.values():
            self.cluster.create_topic(f"{topic}.dlq", 1)
        midnight_ms = time.time_ns() // 1_000_000 // _DAY_MS * _DAY_MS
        self.times_ms = {midnight_ms - 1, midnight_ms + 1}
        self.hosts = [self.start_host(now_ms) for now_ms in sorted(self.times_ms)]
        for host in self.hosts:
            host.wait_until_ready()

    def start_host(self, now_ms):
        topics = [f"{table}_topic = {topic}" for table, topic in self.topics.items()]
        command = [*command_after((set_clock, now_ms)), "api"]
        return self.start_api("publish_timeout_seconds = 0.5", *topics, command=command)

    def start_persister(self, *mutants):
        groups = [NO_ALARMS]
        for table, topic in self.topics.items():
            groups.append(f"[kafka_{table}]\nenabled = true\ntopic = {topic}\ngroup_id = {self.group}-{table}")
        points = "storage.in_transaction=kill@3;storage.after_commit=kill@6"
        return self.start(others="\n".join(groups), fail_points=points, mutants=mutants)

    def post_everything(self):
        """Post each bulk to both hosts in turn, until both have accepted it."""
        for fault in (
            Fault.cut_answer(ApiKey.PRODUCE, probability=0.2, seed=3, times=6),
            Fault.drop_answer(ApiKey.PRODUCE, probability=0.1, seed=3, times=2),
        ):
            self.fixture.proxy.add(fault)
        for number in range(_BULKS):
            for turn in range(2):
                host = self.hosts[(number + turn) % 2]
                for table, path in _PATHS.items():
                    body, key = self.body(table, number), {"Idempotency-Key": f"{table}-{number}"}
                    self.wait_until(
                        lambda host=host, body=body, key=key, path=path: host.post(body, key, path)[0] in (200, 204),
                        what=f"post {number} at host {turn}",
                    )

    def body(self, table, bulk):
        numbers = range(bulk * _OF_A_BULK, (bulk + 1) * _OF_A_BULK)
        if table == "logs":
            return {"logs": [{"message": str(number)} for number in numbers]}
        return {"events": [{"event": {"event_type": str(number), "payload": {}}} for number in numbers]}

    def numbers(self, table):
        column = {"logs": "message", "events": "event_type"}[table]
        with self.engine.connect() as connection:
            return sorted(map(int, connection.execute(sa.text(f"SELECT {column} FROM {table}")).scalars()))

    def times_of(self, table):
        with self.engine.connect() as connection:
            return set(connection.execute(sa.text(f"SELECT time FROM {table}")).scalars())

    def store_everything(self, *mutants):
        persister = self.start_persister(*mutants)
        self.post_everything()
        self.fixture.proxy.clear()
        places = [TopicPartition(topic, partition) for topic in self.topics.values() for partition in range(2)]
        self.ends = self.cluster.admin.end_offsets(places)
        self.wait_until(self.everything_is_stored, what="the end of the topics")
        self.assert_ends_in_order(persister)

    def everything_is_stored(self):
        """Return whether all messages of the topics are stored or dead letters."""
        with self.engine.connect() as connection:
            found = connection.execute(sa.text('SELECT topic, partition, "next" FROM kafka_offset')).all()
        stored = {TopicPartition(topic, partition): next_offset for topic, partition, next_offset in found}
        return all(stored.get(place, 0) >= end for place, end in self.ends.items())

    # Rule 25
    def test_each_post_is_one_row(self):
        self.store_everything()
        for table in _PATHS:
            with each_once():
                self.assertEqual(list(range(_BULKS * _OF_A_BULK)), self.numbers(table))
            self.assertLessEqual(self.times_of(table), self.times_ms)


@periodic("repeats a PostgreSQL test on SQLite")
class KeyedPostsSqliteTest(KeyedPosts, PersisterCase):
    # Rule 25
    def test_mutant_that_keys_rows_by_their_times_stores_them_twice(self):
        self.store_everything("keys_rows_by_their_times")
        for table in _PATHS:
            self.assertGreater(len(self.numbers(table)), _BULKS * _OF_A_BULK)


@periodic("the contract of the storage stores by key")
class KeyedPostsPostgresqlTest(KeyedPosts, PersisterCase):
    database = "postgresql"
