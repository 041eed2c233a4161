# SPDX-License-Identifier: Apache-2.0
"""An audited source or reader for crash tests: ``python -m … '<json>'``, with ``MONASCA_FAIL_POINTS`` armed.

A source sends ``messages`` and ends; a reader ends once its group has committed that many messages, with or without
transactions. ``mutant`` removes a guarantee of the audit.
"""

import json
import sys
import threading
import uuid
from unittest import mock

from msgspec import structs

from monasca_common.audit import reporter, reports
from monasca_common.audit.reader_audit import ReaderAudit
from monasca_common.audit.reporter import AuditReporter
from monasca_common.audit.settings import AuditSettings
from monasca_common.kafka import Hook, Processor, Record, open_consumer, open_producer
from monasca_common.kafka.failpoints import fail_point
from monasca_common.kafka.settings import ConnectionSettings, ConsumerSettings, ProducerSettings
from monasca_common.kafka.transport.admin import Admin

_LOOK_SECONDS = 0.05
_SOURCE_BULK = 20
_TIERS = {"source": "producer", "reader": "database", "transactional": "spark"}


class ReportsAfterTheCommit(ReaderAudit):
    """A mutant that loses committed messages that are not yet in the journal when the process is killed."""

    def before_commit(self, offsets):
        self.offsets = offsets

    def after_commit(self, outcomes):
        super().before_commit(self.offsets)


def with_new_id(value, message_id):
    """A mutant of the record of a report: a repeated report is counted again."""
    return Record(reports.encode(structs.replace(reports.decode(value), id=uuid.uuid4().hex)), message_id=message_id)


class _Killed(Hook):
    """Kill the process after the commit."""

    def after_commit(self, outcomes):
        fail_point("test.after_commit")


def send(arguments, connection, reporter):
    with open_producer(reporter.audited(ProducerSettings(connection))) as producer:
        for number in range(0, arguments["messages"], _SOURCE_BULK):
            producer.publish(arguments["topic"], [b"%d" % number] * _SOURCE_BULK).raise_for_undelivered()
            reporter.report()


def read(arguments, connection, reporter):
    # The successor is the same static member, and does not wait for a session to end.
    settings = ConsumerSettings(
        connection, (arguments["topic"],), arguments["group"], batch_size=20, group_instance_id="one"
    )
    kind = ReportsAfterTheCommit if arguments["mutant"] == "reports_after_the_commit" else ReaderAudit
    admin = Admin({"bootstrap.servers": arguments["servers"]})
    transactional = arguments["role"] == "transactional"
    producing = ProducerSettings(connection, transactional_id=arguments["group"] if transactional else None)
    with open_consumer(settings) as consumer, open_producer(producing) as producer:
        # Hooks after a commit are called in reverse: the kill comes before the mutant's report.
        hooks = [kind(reporter), _Killed()]
        processor = Processor(consumer, lambda part: None, producer=producer, transactional=transactional, hooks=hooks)
        runs = threading.Thread(target=processor.run)
        runs.start()
        while runs.is_alive() and sum(admin.group_offsets(arguments["group"]).values()) < arguments["messages"]:
            runs.join(_LOOK_SECONDS)
        processor.stop()
        runs.join()


def main(arguments):
    connection = ConnectionSettings(arguments["servers"])
    # A source reports only after each bulk, so that the loss caused by a kill is known.
    if arguments["role"] == "source":
        mock.patch.object(AuditSettings, "report_seconds", 3600.0).start()
    settings = AuditSettings(
        enabled=True, topic=arguments["reports"], bucket_seconds=60, grace_seconds=0, folder=arguments["folder"]
    )
    if arguments["mutant"] == "new_ids":
        mock.patch.object(reporter, "Record", with_new_id).start()
    with AuditReporter(settings, ProducerSettings(connection), _TIERS[arguments["role"]], arguments["group"]) as opened:
        (send if arguments["role"] == "source" else read)(arguments, connection, opened)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
