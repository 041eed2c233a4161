# SPDX-License-Identifier: Apache-2.0
"""`AuditReporter`: collects what a process had of each topic, keeps it in its journal, and sends it as reports."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import replace
from types import TracebackType

from monasca_common.audit import reports
from monasca_common.audit.delivery_counts import DeliveryTotals
from monasca_common.audit.journal import Journal
from monasca_common.audit.reports import PRODUCER, SOURCES, AuditCount, AuditReport, HandledRange
from monasca_common.audit.settings import AuditSettings
from monasca_common.kafka import DeliveryReport, MessagingError, Record, open_producer
from monasca_common.kafka.clock import Clock, SystemClock
from monasca_common.kafka.errors import ConfigurationError
from monasca_common.kafka.failpoints import fail_point
from monasca_common.kafka.settings import ProducerSettings
from monasca_common.runtime.shutdown import CLOSE_SECONDS

LOG = logging.getLogger(__name__)

_AT_ONCE = 500  # reports in one bulk


class AuditReporter:
    """Of one application at one tier, in one process; a context manager. Make it after the fork.

    ``tier``: of what it handles. What producers of a reader deliver has the tier ``producer``, as it has with those
    that read nothing. ``settings.folder`` must be set. A failure of the audit is logged, and never disturbs what is
    audited.
    """

    def __init__(
        self,
        settings: AuditSettings,
        producer: ProducerSettings,
        tier: str,
        application: str,
        *,
        clock: Clock | None = None,
    ) -> None:
        self.settings = settings
        self.clock = clock or SystemClock()
        self._tier = tier
        self._tier_of_counts = tier if tier in SOURCES else PRODUCER
        self._application = application
        self._instance = f"{os.getpid()}-{uuid.uuid4().hex[:8]}"
        # What is reported has happened, and reports are not audited themselves.
        self._producer_settings = replace(producer, transactional_id=None, tap=None)
        self._delivered = DeliveryTotals(settings.bucket_seconds)
        self._sending: list[AuditReport] = []
        self._sent: DeliveryReport | None = None  # of these, while some of them are not acknowledged
        self._reporting = threading.Lock()
        self._ended = threading.Event()

    def __enter__(self) -> AuditReporter:
        return self.open()

    def open(self) -> AuditReporter:
        """Take over what processes that are gone left in the folder, and begin. Raises `ConfigurationError`."""
        self._journal = Journal(self.settings.folder or "")
        self._journal.adopt()
        self._producer = open_producer(self._producer_settings)
        self._thread = threading.Thread(target=self._run, name="audit", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Report what is left; what no broker acknowledges in a few seconds is sent at the next start."""
        self._journal.release()
        self._ended.set()
        self._thread.join(CLOSE_SECONDS + self._producer_settings.publish_timeout_seconds)
        self._producer.close(CLOSE_SECONDS)
        self._journal.close()

    def audited(self, producer: ProducerSettings) -> ProducerSettings:
        """These settings; what producers deliver that are opened with them is reported."""
        return replace(producer, tap=self._delivered.tap)

    def counted(self, counts: Iterable[AuditCount]) -> None:
        """What a source counted itself."""
        self._add(counts=tuple(counts))

    def handled(self, ranges: Iterable[HandledRange], *, held: bool = False) -> str:
        """What a reader has handled. It is in the journal's file when this returns, and survives this process: commit
        the offsets after that.

        ``held``: it is sent once `settle` is called with the id that this returns, at the close, or by the next process
        if this one is killed before: whatever is not committed is then read, and handled, again.
        """
        fail_point("audit.before_journal")
        report_id = self._add(handled=tuple(ranges), held=held)
        fail_point("audit.after_journal")
        return report_id

    def settle(self, report_id: str, *, aborted: bool) -> None:
        """Send what was held, or, if its transaction was aborted, forget it."""
        if aborted:
            self._journal.done([report_id])
        else:
            self._journal.release([report_id])

    def report(self) -> bool:
        """Count, journal and send; whether all is acknowledged. The reporter's own thread calls it regularly."""
        with self._reporting:
            counts = tuple(
                AuditCount(topic, bucket_ms, count.messages, count.bytes, count.delay_ms, count.max_delay_ms)
                for (topic, bucket_ms), count in self._delivered.take().items()
            )
            if counts:
                fail_point("audit.after_take")
                self.counted(counts)
            while self._sent is not None or self._journal.pending():
                if not self._send():
                    return False
            return True

    def _send(self) -> bool:
        """Send some of what is pending, or again what is not acknowledged yet; whether it is now."""
        if self._sent is None:
            self._sending = self._journal.pending()[:_AT_ONCE]
            records = [Record(reports.encode(each), message_id=each.id.encode()) for each in self._sending]
            self._sent = self._producer.publish(self.settings.topic, records)
        else:
            self._sent = self._producer.retry(self._sent)
        fail_point("audit.after_publish")
        self._journal.done(self._sending[each.index].id for each in self._sent.delivered)
        undelivered = self._sent.failed + self._sent.unknown
        if not undelivered:
            self._sent = None
            return True
        error = undelivered[0].error
        if all(each.error is not None and each.error.permanent for each in undelivered):
            LOG.error("%d reports of the audit can never be sent: %s", len(undelivered), error)
            self._journal.done(self._sending[each.index].id for each in undelivered)
            self._sent = None
            return True
        LOG.warning("%d reports of the audit wait: %s", len(undelivered), error)
        return False

    def _add(
        self, *, counts: tuple[AuditCount, ...] = (), handled: tuple[HandledRange, ...] = (), held: bool = False
    ) -> str:
        """The id of the report."""
        report = AuditReport(
            id=uuid.uuid4().hex,
            tier=self._tier if handled else self._tier_of_counts,
            application=self._application,
            host=socket.gethostname(),
            instance=self._instance,
            sent_ms=self.clock.time_ms(),
            bucket_seconds=self.settings.bucket_seconds,
            counts=counts,
            handled=handled,
        )
        self._journal.add(report, held=held)
        return report.id

    def _run(self) -> None:
        while True:
            ended = self._ended.wait(self.settings.report_seconds)
            try:
                self.report()
            except MessagingError as error:
                LOG.warning("reports of the audit wait: %s", error)
            except Exception:
                LOG.exception("the audit failed to report; it goes on")
            if ended:
                return


def audited(producer: ProducerSettings, reporter: AuditReporter | None) -> ProducerSettings:
    """The settings of producers that are audited where there is a reporter."""
    return producer if reporter is None else reporter.audited(producer)


@contextlib.contextmanager
def audited_source(
    producer: ProducerSettings, settings: AuditSettings | None, application: str
) -> Iterator[ProducerSettings]:
    """The settings of producers whose deliveries are reported as those of ``application`` while the block runs, where
    ``settings`` has audits on. Close the producers before. Without a folder that can be used it goes on, and a line in
    the log says that nothing is reported."""
    with contextlib.ExitStack() as stack:
        reporter = None
        if settings is not None and settings.enabled:
            try:
                reporter = stack.enter_context(AuditReporter(settings, producer, PRODUCER, application))
            except ConfigurationError as error:
                LOG.warning("what %s sends is not reported to the audit: %s", application, error)
        yield audited(producer, reporter)
