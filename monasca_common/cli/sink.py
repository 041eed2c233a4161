# SPDX-License-Identifier: Apache-2.0
"""``monasca-common sink run | plan | check``: store the messages of any topic as rows of users' tables."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import Any

from monasca_common.cli.command import ChangeLister, MonascaCommand, add_execute, positive
from monasca_common.cli.service_command import ServiceCommand
from monasca_common.kafka import Message, RetryLater, TopicPartition, plugins
from monasca_common.operations.log_reading import LogReader
from monasca_common.sink.settings import SinkSettings, sink_settings
from monasca_common.storage.errors import StorageError


class SinkRun(ServiceCommand):
    """Run the sink until SIGTERM: store each message of the topics in the mapping file once as a row.

    The options are in [sink], [storage], [database] and [kafka]. SIGHUP reloads them and the mapping file. For
    example:
    monasca-common sink run --config-file /etc/monasca/sink.conf
    """

    extra = "persister"
    service = "monasca_common.sink.service"
    checked = "sink"
    reported = (*ServiceCommand.reported, StorageError)


class _SinkComparison(MonascaCommand, ChangeLister):
    """Compares the mapping file with the tables, and with the latest messages of the topics."""

    extra = "persister"
    columns = ("place", "finding", "action")

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--sample",
            type=positive,
            default=100,
            metavar="N",
            help="number of messages to decode at the end of each partition (default: %(default)s)",
        )

    def change(self, parsed_args: argparse.Namespace, rows: list[Sequence[Any]]) -> None:
        from monasca_common.sink.sample import sample_findings
        from monasca_common.sink.schemas import schema_findings
        from monasca_common.sink.service import decoders, open_sink_storage
        from monasca_common.storage.tables.steps import table_steps

        conf = self.read(parsed_args)
        settings = sink_settings(conf)
        open_sink_storage(settings)
        executes = getattr(parsed_args, "execute", False)
        steps = table_steps(settings.storage, settings.tables, execute=executes)
        rows += [(step.table, step.finding, step.statement or "refused") for step in steps]
        self._status = int(self.fails(rows))
        counts = plugins.open_admin(settings.consumer.connection).partition_counts()
        for topic, decoder in decoders(settings.tables, conf).items():
            if topic not in counts:
                self._status = 1
                rows.append((topic, "is a topic that does not exist", "refused"))
                continue
            try:
                schemas = [(table.name, *each) for table in decoder.tables for each in schema_findings(decoder, table)]
                found = sample_findings(decoder, list(self._sampled(settings, topic, parsed_args.sample)))
            except RetryLater as error:
                rows.append((topic, f"is not compared with the mapping: {error}", "run again"))
                self._status = 1
                continue
            self._status |= int(any(action for _, _, action in schemas))
            self._status |= int(any(place.startswith(f"{topic}/") for place, _ in found))
            rows += [*schemas, *((place, finding, "dead letter" if "/" in place else "") for place, finding in found)]

    def fails(self, rows: Sequence[Sequence[Any]]) -> bool:
        """Return whether these differences between tables and mapping are errors."""
        return bool(rows)

    def _sampled(self, settings: SinkSettings, topic: str, count: int) -> Iterator[Message]:
        admin = plugins.open_admin(settings.consumer.connection)
        partitions = [TopicPartition(topic, number) for number in range(admin.partition_counts()[topic])]
        firsts, ends = admin.first_offsets(partitions), admin.end_offsets(partitions)
        starts = {each: max(firsts[each], ends[each] - count) for each in partitions}
        return LogReader(settings.consumer.connection).messages(starts, ends)


class SinkPlanList(_SinkComparison):
    """Show how tables differ from the mapping file, with the statements that create tables and add nullable columns.

    Refused differences need another mapping or a manual change; if there are any, --execute changes nothing, and the
    exit status is 1. Sampled messages that would become dead letters are also shown. For example:
    monasca-common sink plan --config-file /etc/monasca/sink.conf --execute
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        super().add_arguments(parser)
        add_execute(parser)

    def change(self, parsed_args: argparse.Namespace, rows: list[Sequence[Any]]) -> None:
        super().change(parsed_args, rows)
        self.note_dry_run(parsed_args)

    def fails(self, rows: Sequence[Sequence[Any]]) -> bool:
        return any(action == "refused" for _, _, action in rows)


class SinkCheck(_SinkComparison):
    """Compare the mapping file, the tables and the latest messages; change nothing.

    The exit status is 1 if a table differs, or if a sampled message would become a dead letter. For example:
    monasca-common sink check --config-file /etc/monasca/sink.conf --sample 1000
    """
