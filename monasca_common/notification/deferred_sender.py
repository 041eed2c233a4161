# SPDX-License-Identifier: Apache-2.0
"""Releases due notifications (at the end of silences, as groups, digests and repeats), and runs due attempts.

A row stays until its attempt has ended, and the members of a group until their message has ended. Therefore, a crash
loses no notification, and another process sends the notifications with the same ids.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import Executor, Future, wait

from monasca_common.alarms.address_keys import AddressUnreadable
from monasca_common.alarms.notification_methods import NotificationMethod, NotificationMethods
from monasca_common.kafka.clock import Clock
from monasca_common.kafka.failpoints import fail_point
from monasca_common.notification.deferred import REPEAT, Deferred, DeferredRow
from monasca_common.notification.handlers import NotificationHandler, affects_one_row
from monasca_common.notification.ledger import GIVEN_UP
from monasca_common.notification.notification import repeat_of
from monasca_common.notification.pipeline import Pipeline
from monasca_common.notification.retries import FIRST, Retry
from monasca_common.notification.stages import HELD, LIMIT_KEY, next_repeat_ms
from monasca_common.notification.worker_loop import WorkerLoop
from monasca_common.runtime.member_health import MemberStatus
from monasca_common.storage.errors import DuplicateKey, QueryTimeout, StorageError, StorageUnavailable

LOG = logging.getLogger(__name__)

_ROWS_A_PASS = 100
_REST_SECONDS = 0.5
_BUSY_REST_SECONDS = 0.05  # the pause between passes while rows are due
_LEASE_MS = 30_000  # the time after which another process takes over the claims of a crashed process
_DATABASE_SECONDS = 1.0  # the pause between two tries of an attempt while the database is unavailable
_FAILED_MS = 60_000  # the pause between two tries of a row that cannot be processed


class DeferredSender(WorkerLoop):
    """Runs until `stop`. Several processes can run it concurrently.

    ``handler``: runs due attempts, in the ``threads`` of ``executor``. ``stop_seconds``: the time that attempts in
    progress have to end after `stop`.
    """

    expected = (StorageError,)
    longest_seconds = 5.0  # the maximum delay of a retry after a failure

    def __init__(
        self,
        pipeline: Pipeline,
        methods: NotificationMethods,
        handler: NotificationHandler,
        executor: Executor,
        threads: int,
        clock: Clock,
        stop_seconds: float,
        status: MemberStatus,
    ) -> None:
        super().__init__("deferred notifications", clock, status)
        self._pipeline = pipeline
        self._deferred = pipeline.deferred
        self._methods = methods
        self._handler = handler
        self._executor = executor
        self._threads = threads
        self._stop_seconds = stop_seconds
        self._attempts: dict[Future[None], Retry] = {}
        self._renewed_ms = self._takeover_ms = 0

    def failed(self, error: Exception) -> None:
        super().failed(error)
        # The database may have been unavailable to all processes, so let live processes renew their claims first.
        self._takeover_ms = self._later(_LEASE_MS)

    def run(self) -> None:
        super().run()
        wait(list(self._attempts), self._stop_seconds)

    def serve(self) -> None:
        while not self.stopping.is_set():
            rows, retries = self.release_due(), self.send_retries()
            self.health.turned("")
            if rows < _ROWS_A_PASS:
                self.stopping.wait(_BUSY_REST_SECONDS if retries or rows else _REST_SECONDS)

    def send_retries(self) -> int:
        """Start due attempts, and return their number. Raises `StorageError`."""
        now_ms = self.clock.time_ms()
        if self._attempts and now_ms >= self._renewed_ms + _LEASE_MS // 3:
            self._deferred.renew(list(self._attempts.values()), self._later(_LEASE_MS))
            self._renewed_ms = now_ms
        if (most := self._threads - len(self._attempts)) <= 0:
            return 0
        until_ms, takes_over = self._later(_LEASE_MS), now_ms >= self._takeover_ms
        due = self._deferred.claim_retries(now_ms, until_ms, most, takes_over=takes_over)
        for retry in due:
            fail_point("notification.after_claim")
            future = self._executor.submit(self._attempt, retry)
            self._attempts[future] = retry
            future.add_done_callback(self._attempts.pop)
        return len(due)

    def _attempt(self, retry: Retry) -> None:
        """Run an attempt. While the database is unavailable, this process tries again and keeps its claim, because no
        other process knows which notifications it has sent."""
        while not self.stopping.is_set():
            try:
                following = self._handler.attempt(retry)
                fail_point("notification.after_attempt")
                self._deferred.complete(retry, following, self.clock.time_ms())
            except (StorageUnavailable, QueryTimeout, DuplicateKey):
                self.stopping.wait(_DATABASE_SECONDS)
            except Exception as error:
                self._postpone_attempt(retry, error)
                return
            else:
                return

    def _postpone_attempt(self, retry: Retry, error: Exception) -> None:
        """Schedule the attempt again, or give it up after the ttl. If this also fails, the claim expires."""
        _log(retry.id, retry.notification.id, error)
        try:
            following = self._handler.delivery.wait(retry, _FAILED_MS / 1000, str(error) or type(error).__name__)
            self._deferred.complete(retry, following, self.clock.time_ms())
        except Exception:
            LOG.exception("row %s of notification_deferred cannot be replaced", retry.id)

    def release_due(self) -> int:
        """Process due rows, and return their number. Raises `StorageError`."""
        rows = self._deferred.due(self.clock.time_ms(), _ROWS_A_PASS)
        seen: set[str] = set()
        for row in rows:
            if self.stopping.is_set():
                break
            together = (row.group_key if row.kind == HELD else "") or row.id
            if together not in seen:
                seen.add(together)
                self.health.turned()
                self._release(row)
        return len(rows)

    def _release(self, row: DeferredRow) -> None:
        """Release a row. A failure does not block other rows."""
        try:
            if row.kind == HELD:
                self._release_group(row)
            elif (taken := self._deferred.take(row, self._later(_LEASE_MS))) is None:
                return
            elif row.kind == REPEAT:
                self._repeat(taken)
            else:
                self._end_suppression(taken)
        except Exception as error:
            if not (isinstance(error, AddressUnreadable) or affects_one_row(error)):
                raise
            _log(row.id, row.notification_id, error)
            self._deferred.postpone(row, self._later(_FAILED_MS))

    def _end_suppression(self, withheld: Deferred) -> None:
        """Send a silenced or inhibited notification if its alarm is still in that state."""
        if (method := self._method(withheld)) is None:
            self._deferred.remove(withheld.row)
        elif not self._pipeline.end_suppression(withheld, method):
            return
        elif (deferral := self._pipeline.limit(method.id)) is not None:
            self._deferred.defer_again(withheld.row, deferral, self.clock.time_ms())
        else:
            self._send([withheld], method)

    def _release_group(self, row: DeferredRow) -> None:
        members, method = [], None
        for member in self._deferred.members(row.group_key):
            if (found := self._method(member)) is None:
                reason = "no action of the definition names the method any longer"
                self._handler.delivery.end(member.notification, member.row.method_id, GIVEN_UP, reason)
                self._deferred.remove(member.row)
            elif not self._pipeline.suppresses(member, found):
                members.append(member)
                method = found  # all members of a group have the same method
        if method is None:
            return
        deferral = self._pipeline.limit(method.id, is_digest=row.group_key.startswith(LIMIT_KEY))
        if deferral is not None and deferral.due_ms is not None:
            self._deferred.postpone(row, deferral.due_ms)
        else:
            self._send(members, method)
            fail_point("notification.after_fix")

    def _send(self, members: Sequence[Deferred], method: NotificationMethod) -> None:
        for member in members:
            self._pipeline.begin_repeats(member.notification, method)
        self._deferred.release(members, method.id, self.clock.time_ms())

    def _repeat(self, repeat: Deferred) -> None:
        change, now_ms = repeat.notification.change, self.clock.time_ms()
        method, alarm = self._method(repeat), self._pipeline.current(change)
        if method is None or method.period == 0 or alarm is None or not alarm.is_result_of(change):
            self._deferred.remove(repeat.row)
            return
        next_ms = next_repeat_ms(repeat.row.due, method.period, now_ms)
        retry = None
        if not self._pipeline.leaves_out(repeat, alarm):
            message = repeat_of(repeat.notification, repeat.row.number)
            retry = Retry(message, method.id, FIRST, now_ms, expires_ms=now_ms + method.period * 1000)
        self._deferred.advance(repeat.row, next_ms, now_ms, retry)

    def _method(self, deferred: Deferred) -> NotificationMethod | None:
        """Return the method, or ``None`` if it has been deleted or no action names it. Raises `AddressUnreadable`."""
        change = deferred.notification.change
        methods = self._methods.notified(change.tenant, change.definition_id, change.new_state)
        found = next((method for method in methods if method.id == deferred.row.method_id), None)
        if found is not None and found.unreadable is not None:
            raise found.unreadable
        return found

    def _later(self, ms: int) -> int:
        return self.clock.time_ms() + ms


def _log(row_id: str, notification_id: str, error: Exception) -> None:
    LOG.error(
        "row %s of notification_deferred cannot be processed, and will be retried in %d s: %s; correct the cause, or "
        "delete the row and send its notification with `monasca-common notification resend %s`",
        row_id,
        _FAILED_MS // 1000,
        error,
        notification_id,
        exc_info=error,
    )
