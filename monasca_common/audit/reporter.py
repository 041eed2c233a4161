# SPDX-License-Identifier: Apache-2.0
"""Reporters: a process counts its messages of each topic, and sends the counts as reports from a journal."""

from __future__ import annotations

import contextlib
import logging
import threading
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace

from monasca_common.audit.journal import Journal
from monasca_common.audit.reports import PRODUCER, SOURCES, AuditCount, AuditReport, HandledRange
from monasca_common.audit.settings import AuditSettings
from monasca_common.kafka import DeliveryReport, MessagingError, Record, open_producer
from monasca_common.kafka.clock import Clock, SystemClock
from monasca_common.kafka.failpoints import fail_point
from monasca_common.kafka.message import DeliveryCounts, DeliveryTap
from monasca_common.kafka.settings import ProducerSettings
from monasca_common.runtime.shutdown import CLOSE_SECONDS

LOG = logging.getLogger(__name__)

_BULK_REPORTS = 500


class AuditReporter:
    """Sends the reports of one application at one tier, from one process. A context manager. Create it after the fork.

    ``tier``: the tier of handled messages. Messages delivered by a reader's producers have the tier ``producer``.
    ``settings.folder`` must be set. A failure of the audit is logged and does not affect the audited clients.
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
        # Reports are sent outside transactions, because they describe past events; the reports themselves are not
        # audited.
        self._producer_settings = replace(producer, transactional_id=None, tap=None)
        self._delivered = DeliveryTotals(settings.bucket_seconds)
        self._sending: list[str] = []  # the ids of the reports in the bulk
        self._sent: DeliveryReport | None = None  # the bulk that is repeated until all its reports are acknowledged
        self._reporting = threading.Lock()
        self._ended = threading.Event()

    def __enter__(self) -> AuditReporter:
        return self.open()

    def open(self) -> AuditReporter:
        """Take over the reports of ended processes in the folder, and start. Raises the errors of `open_producer`."""
        self._journal = Journal(self.settings.folder or "")
        self._journal.adopt()
        self._producer = open_producer(self._producer_settings)
        self._thread = threading.Thread(target=self._run, name="audit", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Send the remaining reports. Reports that remain unacknowledged are sent at the next start."""
        self._journal.release()
        self._journal_counts()  # now, because the thread may wait for the brokers until its time is over
        self._ended.set()
        self._thread.join(CLOSE_SECONDS + self._producer_settings.publish_timeout_seconds)
        self._producer.close(CLOSE_SECONDS)
        self._thread.join(CLOSE_SECONDS)  # closing the producer has ended its wait
        self._journal.close()

    def audited(self, producer: ProducerSettings) -> ProducerSettings:
        """Return these settings with a tap, so that the deliveries of their producers are reported."""
        return replace(producer, tap=self._delivered.tap)

    def handled(self, ranges: Iterable[HandledRange], *, held: bool = False) -> str:
        """Add handled ranges to the journal, which survives this process, and return the report's id. Call it before
        the offsets are committed.

        ``held``: the report is sent only after `settle` or `close` is called. If this process is killed, the next
        process sends the report, and handles and reports uncommitted messages again.
        """
        fail_point("audit.before_journal")
        report_id = self._add(handled=tuple(ranges), held=held)
        fail_point("audit.after_journal")
        return report_id

    def settle(self, report_id: str, *, aborted: bool) -> None:
        """Send a held report, or remove it if its transaction was aborted."""
        if aborted:
            self._journal.done([report_id])
        else:
            self._journal.release([report_id])

    def report(self) -> bool:
        """Journal the counts and send all reports; return whether all are acknowledged."""
        with self._reporting:
            self._journal_counts()
            if self._producer.health().finished:
                self._producer.reopen()
            while True:
                if self._sent is not None:
                    self._sent = self._producer.retry(self._sent)
                elif pending := self._journal.pending(_BULK_REPORTS):
                    records = [Record(value, message_id=report_id.encode()) for report_id, value in pending.items()]
                    self._sending, self._sent = list(pending), self._producer.publish(self.settings.topic, records)
                else:
                    return True
                fail_point("audit.after_publish")
                if not self._finish(self._sent):
                    return False
                self._sent = None

    def _journal_counts(self) -> None:
        if delivered := self._delivered.take():
            fail_point("audit.after_take")
            self._add(counts=tuple(AuditCount(*key, messages) for key, messages in delivered.items()))

    def _finish(self, sent: DeliveryReport) -> bool:
        """Remove the acknowledged reports of a bulk, and reports that can never be sent; return whether none remain."""
        self._journal.done(self._sending[each.index] for each in sent.delivered)
        if not (undelivered := sent.failed + sent.unknown):
            return True
        error = undelivered[0].error
        if not all(each.error is not None and each.error.permanent for each in undelivered):
            LOG.warning("%d audit reports are not acknowledged and will be sent again: %s", len(undelivered), error)
            return False
        LOG.error("%d audit reports are dropped, because they can never be sent: %s", len(undelivered), error)
        self._journal.done(self._sending[each.index] for each in undelivered)
        return True

    def _add(
        self, *, counts: tuple[AuditCount, ...] = (), handled: tuple[HandledRange, ...] = (), held: bool = False
    ) -> str:
        report = AuditReport(
            id=uuid.uuid4().hex,
            tier=self._tier if handled else self._tier_of_counts,
            application=self._application,
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
                LOG.warning("audit reports are not acknowledged and will be sent again: %s", error)
            except Exception:
                LOG.exception("sending audit reports failed; they will be sent again")
            if ended:
                return


def audited(producer: ProducerSettings, reporter: AuditReporter | None) -> ProducerSettings:
    """Return the settings of producers that are audited if there is a reporter."""
    return producer if reporter is None else reporter.audited(producer)


@contextlib.contextmanager
def audited_source(
    producer: ProducerSettings, settings: AuditSettings | None, application: str
) -> Iterator[ProducerSettings]:
    """Yield the settings of producers whose deliveries are reported for ``application`` if ``settings`` enables the
    audit. Close the producers within the block.
    """
    if settings is None or not settings.enabled:
        yield producer
        return
    with AuditReporter(settings, producer, PRODUCER, application) as reporter:
        yield reporter.audited(producer)


class DeliveryTotals:
    """The deliveries of a process's producers since the last `take`, by topic and by bucket of the records' timestamps.

    Each producer has its own `tap`, which its client calls with acknowledged messages.
    """

    def __init__(self, bucket_seconds: int) -> None:
        self.bucket_seconds = bucket_seconds
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, int]] = Counter()

    def tap(self) -> DeliveryTap:
        return _Tap(self)

    def add(self, counts: DeliveryCounts) -> None:
        with self._lock:
            for name, messages in counts.items():  # `Counter.update` takes several times as long
                self._counts[name] += messages

    def take(self) -> DeliveryCounts:
        """Return the counts since the last call."""
        with self._lock:
            counts, self._counts = self._counts, Counter()
            return counts


class _Tap:
    """The tap of one producer. It withholds the counts of a transaction until the commit."""

    def __init__(self, totals: DeliveryTotals) -> None:
        self.bucket_seconds = totals.bucket_seconds
        self._totals = totals
        self._lock = threading.Lock()
        self._open_counts: Counter[tuple[str, int]] | None = None

    def add(self, counts: DeliveryCounts) -> None:
        with self._lock:
            if self._open_counts is None:
                self._totals.add(counts)
            else:
                self._open_counts.update(counts)

    def begin(self) -> None:
        with self._lock:
            self._open_counts = Counter()

    def end(self, *, committed: bool) -> None:
        with self._lock:
            if committed:
                self._totals.add(self._open_counts or {})
            self._open_counts = None
