# SPDX-License-Identifier: Apache-2.0
import pathlib

from monasca_common.persister.settings import persister_settings
from monasca_common.storage.base import Kind
from monasca_common.tests.unit.kafka.config_case import ConfigurationTestCase

_SAMPLES = pathlib.Path(__file__).parents[1] / "kafka" / "config" / "samples"
_DATABASE = "[database]\nconnection = sqlite:////tmp/nowhere.sqlite\n"


class OptionsTest(ConfigurationTestCase):
    def settings(self, *lines, **groups):
        groups.setdefault("database", "connection = sqlite:////tmp/nowhere.sqlite")
        return persister_settings(self.with_kafka(*lines, **groups))

    def group(self, kind, settings):
        (group,) = (group for group in settings.groups if group.kind is kind)
        return group

    def test_metrics_and_alarm_history_are_enabled_by_default(self):
        self.assertEqual([Kind.METRICS, Kind.ALARM_HISTORY], [group.kind for group in self.settings().groups])
        settings = self.settings(kafka_metrics="enabled = false", kafka_logs="enabled = true")
        self.assertEqual([Kind.ALARM_HISTORY, Kind.LOGS], [group.kind for group in settings.groups])

    def test_disabling_all_groups_is_refused(self):
        text = self.refused(self.settings, kafka_metrics="enabled = no", kafka_alarm_history="enabled = no")
        self.assertIn("enabled", text)

    def test_batches_are_large_unless_kafka_or_the_group_sets_their_size(self):
        self.assertEqual(20_000, self.settings().groups[0].consumer.batch_size)
        self.assertEqual(7, self.settings("batch_size = 7").groups[0].consumer.batch_size)
        settings = self.settings("batch_size = 7", kafka_metrics="batch_size = 9")
        self.assertEqual([9, 7], [group.consumer.batch_size for group in settings.groups])

    def test_the_number_of_processes_is_inherited_from_kafka(self):
        settings = self.settings("num_processors = 3", kafka_alarm_history="num_processors = 2")
        self.assertEqual([3, 2], [group.num_processors for group in settings.groups])

    def test_the_limit_of_dimensions_comes_from_storage(self):
        self.assertEqual({100}, {group.max_dimensions for group in self.settings().groups})
        settings = self.settings(storage="max_dimensions = 7")
        self.assertEqual({7}, {group.max_dimensions for group in settings.groups})

    def test_the_session_timeout_is_short(self):
        self.assertEqual(10.0, self.settings().groups[0].consumer.session_timeout_seconds)
        self.assertIsNone(self.settings("group_protocol = consumer").groups[0].consumer.session_timeout_seconds)

    def test_dead_letters_are_not_transactional(self):
        self.assertIsNone(self.settings("transactional_id = api").groups[0].producer.transactional_id)

    def test_a_misspelt_option_is_refused_in_each_group_of_the_persister(self):
        self.assertIn("thread", self.refused(self.settings, kafka_metrics="thread = 3"))
        self.assertIn("'status_ports'", self.refused(self.settings, persister="status_ports = 3"))

    def test_a_value_out_of_bounds_is_refused_with_its_option(self):
        for name in ("num_processors", "threads"):
            self.assertIn(f"{name} in group [kafka_metrics]", self.refused(self.settings, kafka_metrics=f"{name} = 0"))
        self.assertIn("status_port in group [persister]", self.refused(self.settings, persister="status_port = x"))

    def test_a_file_of_the_old_persister_works_with_a_database(self):
        text = (_SAMPLES / "persister.conf").read_text()
        settings = persister_settings(self.configured(text + _DATABASE))
        self.assertEqual(
            [(Kind.METRICS, 2, 30_000), (Kind.ALARM_HISTORY, 2, 1000)],
            [(group.kind, group.num_processors, group.consumer.batch_size) for group in settings.groups],
        )
