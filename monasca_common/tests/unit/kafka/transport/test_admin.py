# SPDX-License-Identifier: Apache-2.0
import concurrent.futures
import contextlib
import gc
import itertools
import threading
import time
import weakref
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import fixtures
from confluent_kafka import OFFSET_INVALID, ConsumerGroupState, KafkaError, KafkaException
from confluent_kafka import TopicPartition as ClientTopicPartition
from oslotest import base

from monasca_common.kafka.errors import (
    AuthenticationError,
    AuthorizationError,
    ConfigurationError,
    RetriableError,
    TransportError,
)
from monasca_common.kafka.message import TopicPartition
from monasca_common.kafka.transport.admin import Admin, GroupAssignment

_PATIENCE_SECONDS = 60.0


class Metadata:
    def __init__(self, brokers):
        self.brokers = brokers


class ScriptedClient:
    """A client with a script: each step is a response, or the errors of a call, in its callback and raised."""

    def __init__(self, admin, script):
        self.admin = admin
        self.script = script
        self.pending_errors = []

    def list_topics(self, **_):
        step = self.script.pop(0)
        if isinstance(step, Metadata):
            return step
        received, raised = step
        self.pending_errors += received
        raise KafkaException(KafkaError(raised))

    def describe_consumer_groups(self, groups, request_timeout):
        future: concurrent.futures.Future[None] = concurrent.futures.Future()
        future.set_exception(KafkaException(KafkaError(KafkaError.NOT_COORDINATOR)))
        return dict.fromkeys(groups, future)

    def poll(self, _timeout):
        while self.pending_errors:
            self.admin._login.handle_error(KafkaError(self.pending_errors.pop(0)))


class RefusedOptionsTest(base.BaseTestCase):
    def test_options_that_the_client_refuses_are_a_configuration_error_without_their_values(self):
        file = self.useFixture(fixtures.TempDir()).join("ca.pem")
        Path(file).write_text("no certificate")
        for options in ({"security.protocol": "hush"}, {"security.protocol": "ssl", "ssl.ca.location": file}):
            error = self.assertRaises(ConfigurationError, Admin(options).topic_ids, ("t",), 1.0)
            self.assertIn(list(options)[-1], str(error))
            self.assertNotIn("hush", str(error))


class PatienceTest(base.BaseTestCase):
    def test_a_missing_response_is_retriable(self):
        self.assertRaises(RetriableError, Admin({})._result, concurrent.futures.Future(), 0)


class RefusalTest(base.BaseTestCase):
    def admin(self, *script):
        admin = Admin({"bootstrap.servers": "kafka1:9092,kafka2:9092"})
        admin._opened = ScriptedClient(admin, list(script))
        return admin

    def test_a_refused_login_is_reported_instead_of_its_time_out(self):
        admin = self.admin(([KafkaError._AUTHENTICATION], KafkaError._TRANSPORT))
        self.assertRaises(AuthenticationError, admin.wait_for_brokers, 1, 0)

    def test_a_past_refusal_is_not_the_reason_of_a_later_failure(self):
        admin = self.admin(([KafkaError._SSL], KafkaError._TRANSPORT), Metadata([1]), ([], KafkaError._TIMED_OUT))
        self.assertRaises(AuthenticationError, admin.wait_for_brokers, 1, 0)
        admin.wait_for_brokers(1, 0)
        self.assertRaises(RetriableError, admin.wait_for_brokers, 1, 0)

    def test_a_refused_login_does_not_replace_the_error_of_a_broker_that_responds(self):
        admin = self.admin(([KafkaError._AUTHENTICATION], KafkaError.TOPIC_AUTHORIZATION_FAILED))
        self.assertRaises(AuthorizationError, admin.wait_for_brokers, 1, 0)

    def test_an_error_names_brokers_that_do_not_respond_and_the_settings_to_check(self):
        admin = self.admin(([], KafkaError._TRANSPORT))
        reported = self.assertRaises(RetriableError, admin.wait_for_brokers, 1, 0)
        self.assertEqual("_TRANSPORT", reported.name)
        self.assertIn("no response from kafka1:9092,kafka2:9092: check that these brokers are up", str(reported))

    def test_data_of_the_caller_of_a_failed_request_is_released_without_a_collection(self):
        self.addCleanup(gc.enable)
        gc.disable()
        found = []

        def ask(call):
            rows = set()
            found.append(weakref.ref(rows))
            call()

        for call in (
            lambda: self.admin(([], KafkaError._TRANSPORT)).partition_count("topic"),
            lambda: self.admin(([], KafkaError._TRANSPORT)).wait_for_brokers(1, 0),
            lambda: self.admin().alter_group_offsets("group", {}),
        ):
            with contextlib.suppress(RetriableError):
                ask(call)
        self.assertEqual([None] * 3, [each() for each in found])


class FakeBrokers:
    """Brokers that learn of a new topic one after the other, and report a different broker as controller each time."""

    def __init__(self):
        self.controllers = itertools.cycle((2, 1, 1, 2))
        self.ids = {1: "old", 2: None}  # the topic's id as each broker knows it
        self.created = False
        self.requests = []  # the topics of each create request
        self.asked = []
        self.late = {1: 3, 2: 0}  # how often each broker is asked after the creation before it knows the topic
        self.between = None  # the response of brokers without the topic's id until then

    def metadata(self):
        partitions = {0: SimpleNamespace(leader=1), 1: SimpleNamespace(leader=2)}
        brokers = {number: SimpleNamespace(host=f"kafka{number}", port=9092) for number in (1, 2)}
        topics = dict.fromkeys(("t", "u"), SimpleNamespace(partitions=partitions))
        return SimpleNamespace(controller_id=next(self.controllers), brokers=brokers, topics=topics)

    def topic_id(self, broker):
        self.asked.append(broker)
        if self.created:
            self.late[broker] -= 1
            self.ids[broker] = "new" if self.late[broker] < 0 else self.ids[broker] or self.between
        return self.ids[broker]


class FakeClient:
    """Like librdkafka's client, sends requests to the broker that the last metadata named as the controller."""

    brokers: FakeBrokers

    def __init__(self, options):
        self.servers = options["bootstrap.servers"]

    def list_topics(self, **_):
        metadata = self.brokers.metadata()
        self.controller = metadata.controller_id
        return metadata

    def create_topics(self, topics, **_):
        self.brokers.created = True
        self.brokers.requests.append([topic.topic for topic in topics])
        return {topic.topic: answered(None) for topic in topics}

    def describe_topics(self, topics, **_):
        topic_id = self.brokers.topic_id(self.controller)
        if topic_id is None:
            unknown = KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
            return {name: answered(unknown) for name in topics.topic_names}
        return {name: answered(SimpleNamespace(topic_id=topic_id)) for name in topics.topic_names}

    def poll(self, _timeout):
        pass


def answered(result):
    future = concurrent.futures.Future()
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)
    return future


class ManyGroupsClient:
    """Receives requests for 70 groups, and sends no response before all concurrent requests have arrived."""

    def __init__(self, _options):
        self.waiting = {"offsets": [], "members": []}

    def list_consumer_group_offsets(self, groups, request_timeout):
        return self.asked("offsets", [group.group_id for group in groups])

    def describe_consumer_groups(self, groups, request_timeout):
        return self.asked("members", groups)

    def asked(self, what, groups):
        futures = {group: concurrent.futures.Future() for group in groups}
        self.waiting[what] += futures.items()
        if len(self.waiting[what]) in (50, 70):
            for group, future in self.waiting[what]:
                if not future.done():
                    future.set_result(self.answer(what, int(group)))
        return futures

    def answer(self, what, number):
        partitions = [SimpleNamespace(topic="t", partition=0, offset=number)]
        if what == "offsets":
            return SimpleNamespace(topic_partitions=partitions)
        members = [SimpleNamespace(assignment=SimpleNamespace(topic_partitions=partitions))]
        state = ConsumerGroupState.STABLE if number else ConsumerGroupState.PREPARING_REBALANCING
        return SimpleNamespace(members=members, is_simple_consumer_group=False, state=state)

    def poll(self, _timeout):
        pass


class ManyGroupsTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.useFixture(fixtures.MonkeyPatch("monasca_common.kafka.transport.admin.AdminClient", ManyGroupsClient))
        self.admin = Admin({})
        self.groups = [str(number) for number in range(70)]

    def test_offsets_of_fifty_groups_are_requested_concurrently(self):
        found = self.admin.offsets_of(self.groups, timeout=-1)
        self.assertEqual({group: {TopicPartition("t", 0): int(group)} for group in self.groups}, found)

    def test_members_of_fifty_groups_are_requested_concurrently(self):
        found = self.admin.assignments(self.groups, timeout=-1)
        expected = GroupAssignment(frozenset({TopicPartition("t", 0)}), subscribes=True)
        self.assertEqual(dict.fromkeys(self.groups, expected) | {"0": replace(expected, is_settled=False)}, found)


class OptionsTest(base.BaseTestCase):
    def test_an_admin_disables_automatic_topic_creation(self):
        with mock.patch("monasca_common.kafka.transport.admin.AdminClient") as client:
            self.assertIsNotNone(Admin({"allow.auto.create.topics": True, "log_level": 5})._client)
        options = client.call_args.args[0]
        self.assertEqual((False, 5), (options["allow.auto.create.topics"], options["log_level"]))


class GroupsTest(base.BaseTestCase):
    def test_a_broker_that_does_not_respond_is_a_retriable_error_although_others_list_their_groups(self):
        admin = Admin({"bootstrap.servers": "kafka1:9092"})
        admin._opened = client = mock.Mock()
        partly = SimpleNamespace(valid=[SimpleNamespace(group_id="g")], errors=[KafkaError(KafkaError._TIMED_OUT)])
        client.list_consumer_groups.return_value = answered(partly)
        error = self.assertRaises(RetriableError, admin.groups)
        self.assertEqual("_TIMED_OUT", error.name)
        self.assertIn("no response from kafka1:9092", str(error))


class SilentClient:
    """Answers only if ``answers`` is true; ``limits``: the time-outs that it received."""

    def __init__(self, closed):
        self.answers = False
        self.limits = []
        weakref.finalize(self, closed.set)

    def _asked(self, names, request_timeout):
        self.limits.append(request_timeout)
        found = SimpleNamespace(members=[], is_simple_consumer_group=False, state=None, topic_partitions=[])
        return {name: answered(found) if self.answers else concurrent.futures.Future() for name in names}

    def list_consumer_groups(self, request_timeout):
        future = self._asked(["all"], request_timeout)["all"]
        if self.answers:
            future = answered(SimpleNamespace(errors=[], valid=[]))
        return future

    def describe_consumer_groups(self, groups, request_timeout):
        return self._asked(groups, request_timeout)

    def list_consumer_group_offsets(self, groups, request_timeout):
        return self._asked([group.group_id for group in groups], request_timeout)

    def describe_configs(self, resources, request_timeout):
        return self._asked(resources, request_timeout)

    def poll(self, _timeout):
        pass


class ReplacedClientTest(base.BaseTestCase):
    """librdkafka aborts the process when its own time-out ends a request (librdkafka#4605)."""

    def setUp(self):
        super().setUp()
        self.clients = []
        self.closed = threading.Event()
        self.useFixture(fixtures.MonkeyPatch("monasca_common.kafka.transport.admin.AdminClient", self.open))
        self.admin = Admin({"bootstrap.servers": "kafka1:9092"})

    def open(self, _options):
        client = SilentClient(self.closed)
        self.clients.append(weakref.ref(client))
        return client

    def test_a_client_without_a_response_is_closed_on_another_thread_and_replaced(self):
        error = self.assertRaises(RetriableError, self.admin.groups, 0)
        self.assertEqual("_TIMED_OUT", error.name)
        self.assertIn("0 s without a response: no response from kafka1:9092", str(error))
        self.assertTrue(self.closed.wait(_PATIENCE_SECONDS))
        self.assertEqual([None], [client() for client in self.clients])
        self.assertRaises(RetriableError, self.admin.groups, 0)
        self.assertEqual(2, len(self.clients))

    def test_librdkafka_gives_up_no_request_before_the_caller_does(self):
        client = self.admin._client
        for call in (
            lambda: self.admin.groups(7),
            lambda: self.admin.assignments(["g"], 7),
            lambda: self.admin.offsets_of(["g"], 7),
        ):
            client.answers = True
            call()
        self.assertEqual({3600.0}, set(client.limits))

    def test_a_call_does_not_close_a_client_that_was_opened_after_its_request(self):
        early = time.monotonic()
        self.assertRaises(RetriableError, self.admin.groups, 0)
        present = self.admin._client
        self.assertRaises(RetriableError, self.admin._result, concurrent.futures.Future(), 0, early)
        self.assertIs(present, self.admin._client)

    def test_all_requests_of_a_call_share_its_time_out(self):
        found = self.admin.max_message_bytes([f"t{number}" for number in range(1000)], 0.05)
        self.assertEqual({"_TIMED_OUT"}, {error.name for error in found.values()})

    def test_an_error_that_is_not_retriable_keeps_the_client(self):
        refused = answered(KafkaException(KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED)))
        self.assertRaises(TransportError, self.admin._result, refused, 1.0)
        self.assertIsNotNone(self.clients[0]())


class CoordinatorTest(base.BaseTestCase):
    """librdkafka crashes when a coordinator refuses to answer about offsets (librdkafka#5040)."""

    def setUp(self):
        super().setUp()
        self.client = mock.Mock()
        self.useFixture(fixtures.MonkeyPatch("monasca_common.kafka.transport.admin.AdminClient", lambda _: self.client))
        self.useFixture(fixtures.MonkeyPatch("monasca_common.kafka.transport.admin._MOVE_SECONDS", 0.01))
        self.admin = Admin({})

    def describes(self, code):
        self.client.describe_consumer_groups.return_value = {"g": answered(KafkaException(KafkaError(code)))}

    def test_offsets_are_not_requested_from_a_coordinator_that_refuses_the_group(self):
        for code in (KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_NOT_AVAILABLE):
            self.describes(code)
            self.assertRaises(RetriableError, self.admin.group_offsets, "g", timeout=0.0)
            self.assertRaises(RetriableError, self.admin.alter_group_offsets, "g", {TopicPartition("t", 0): 1})
        self.client.list_consumer_group_offsets.assert_not_called()
        self.client.alter_consumer_group_offsets.assert_not_called()

    def test_after_a_late_response_offsets_are_not_requested_from_a_coordinator_that_moved_since(self):
        """A frozen broker responds before it learns that its groups moved."""
        self.useFixture(fixtures.MonkeyPatch("monasca_common.kafka.transport.admin._LATE_SECONDS", 0.0))
        self.useFixture(fixtures.MonkeyPatch("monasca_common.kafka.transport.admin._SETTLE_SECONDS", 0.0))
        self.client.describe_consumer_groups.side_effect = [
            {"g": answered(KafkaException(KafkaError(code)))}
            for code in (KafkaError.GROUP_ID_NOT_FOUND, KafkaError.NOT_COORDINATOR)
        ]
        self.assertRaises(RetriableError, self.admin.group_offsets, "g", timeout=0.0)
        self.client.list_consumer_group_offsets.assert_not_called()

    def test_a_query_is_repeated_after_a_coordinator_moved(self):
        moved, unknown = KafkaError.NOT_COORDINATOR, KafkaError.GROUP_ID_NOT_FOUND
        queries = (self.admin.group_members, self.admin.group_offsets, lambda group: self.admin.assignments([group]))
        for query in queries:
            self.client.describe_consumer_groups.side_effect = [
                {"g": answered(KafkaException(KafkaError(code)))} for code in (moved, moved, unknown)
            ]
            self.client.list_consumer_group_offsets.return_value = {"g": answered(SimpleNamespace(topic_partitions=[]))}
            query("g")
            self.assertEqual(0, len(list(self.client.describe_consumer_groups.side_effect)))

    def test_offsets_of_a_group_without_members_are_read(self):
        for code in (KafkaError.GROUP_ID_NOT_FOUND, KafkaError.INCONSISTENT_GROUP_PROTOCOL):
            self.describes(code)
            stored = [ClientTopicPartition("t", 0, 7)]
            self.client.list_consumer_group_offsets.return_value = {
                "g": answered(SimpleNamespace(topic_partitions=stored))
            }
            self.assertEqual({TopicPartition("t", 0): 7}, self.admin.group_offsets("g"))


class OffsetsTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.client = mock.Mock()
        opened = mock.Mock(side_effect=lambda _: self.client)
        self.useFixture(fixtures.MonkeyPatch("monasca_common.kafka.transport.admin.AdminClient", opened))
        self.useFixture(fixtures.MonkeyPatch("monasca_common.kafka.transport.admin._MOVE_SECONDS", 0.01))
        self.opened = opened
        self.admin = Admin({})

    def ends(self, *offsets):
        """Return the administrator's result for this response of the client, an offset of each partition of ``t``."""
        self.client.list_offsets.return_value = {
            ClientTopicPartition("t", number): answered(SimpleNamespace(offset=offset))
            for number, offset in enumerate(offsets)
        }
        return self.admin.end_offsets([TopicPartition("t", number) for number in range(len(offsets))])

    def test_offsets_come_from_the_response(self):
        self.assertEqual({TopicPartition("t", 0): 7, TopicPartition("t", 1): 0}, self.ends(7, 0))
        self.assertEqual(1, self.opened.call_count)

    def test_offsets_are_requested_again_after_a_leader_moved(self):
        partition = ClientTopicPartition("t", 0)
        for code in (KafkaError.FENCED_LEADER_EPOCH, KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError._DESTROY_BROKER):
            self.client.list_offsets.side_effect = [
                {partition: answered(KafkaException(KafkaError(code)))},
                {partition: answered(SimpleNamespace(offset=7))},
            ]
            self.assertEqual({TopicPartition("t", 0): 7}, self.admin.end_offsets([TopicPartition("t", 0)]))

    def test_an_error_of_a_moving_leader_is_raised_after_the_timeout(self):
        moved = answered(KafkaException(KafkaError(KafkaError.FENCED_LEADER_EPOCH)))
        self.client.list_offsets.return_value = {ClientTopicPartition("t", 0): moved}
        error = self.assertRaises(RetriableError, self.admin.end_offsets, [TopicPartition("t", 0)], 0.1)
        self.assertEqual("FENCED_LEADER_EPOCH", error.name)
        self.assertGreater(self.client.list_offsets.call_count, 1)

    def test_a_missing_offset_of_a_leader_is_retriable_and_another_client_learns_the_next_leader(self):
        error = self.assertRaises(RetriableError, self.ends, 7, OFFSET_INVALID)
        self.assertIn("t/1: its leader did not report its offset", str(error))
        self.ends(7, 0)
        self.assertEqual(2, self.opened.call_count)

    def test_another_client_finds_a_broker_after_the_first_one_died(self):
        self.client.describe_topics.side_effect = lambda *_, **__: {
            "t": answered(KafkaException(KafkaError(KafkaError._TRANSPORT)))
        }
        for opened, ask in enumerate(
            (lambda: self.admin.describe_topic("t"), lambda: self.admin.topic_ids(["t"], 1.0)), 1
        ):
            self.assertRaises(RetriableError, ask)
            self.assertEqual(opened, self.opened.call_count)


class CreateTopicTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.brokers = FakeBrokers()
        client = type("Client", (FakeClient,), {"brokers": self.brokers})
        self.useFixture(fixtures.MonkeyPatch("monasca_common.kafka.transport.admin.AdminClient", client))
        self.useFixture(fixtures.MonkeyPatch("monasca_common.kafka.transport.admin._LOOK_AGAIN_SECONDS", 0))
        self.admin = Admin({"bootstrap.servers": "kafka1:9092,kafka2:9092"})

    def test_a_topic_is_created_once_every_leader_serves_its_new_id(self):
        self.admin.create_topic("t", 2)
        self.assertEqual({1: "new", 2: "new"}, self.brokers.ids)
        self.assertEqual([1, 2] * 5, self.brokers.asked)  # once before, then until the late broker knows the topic

    def test_several_topics_are_created_by_one_request_and_each_broker_is_queried_once(self):
        self.admin.create_topics({"t": 2, "u": 2}, configs={"t": {}, "u": {}})
        self.assertEqual([["t", "u"]], self.brokers.requests)
        self.assertEqual([1, 2] * 5, self.brokers.asked)

    def test_a_creation_waits_for_leaders_that_still_serve_the_old_topic(self):
        self.brokers.ids = {1: "old", 2: "old"}
        self.brokers.late = {1: 3, 2: 5}
        self.admin.create_topic("t", 2)
        self.assertEqual({1: "new", 2: "new"}, self.brokers.ids)

    def test_a_creation_waits_for_leaders_with_different_ids_even_if_the_old_id_is_unknown(self):
        self.brokers.ids = {1: None, 2: None}
        self.brokers.late = {1: 2, 2: 0}
        self.brokers.between = "old"
        self.admin.create_topic("t", 2)
        self.assertEqual({1: "new", 2: "new"}, self.brokers.ids)

    def test_a_leader_that_does_not_learn_of_a_topic_is_an_error(self):
        self.brokers.late[1] = 1_000_000
        error = self.assertRaises(RetriableError, self.admin.create_topic, "t", 2, timeout=0.05)
        self.assertIn("not every leader", str(error))
