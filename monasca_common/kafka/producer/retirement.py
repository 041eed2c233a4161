# SPDX-License-Identifier: Apache-2.0
"""How a client is given up: for good at a close, for another one at a reopen.

Either detaches it and then looks at the book, so that a send that enters meanwhile sees it, or is seen. A thread whose
call of the client hangs is waited for no longer than the caller's time.
"""

from __future__ import annotations

from monasca_common.kafka.clock import Clock
from monasca_common.kafka.errors import DeliveryAbandoned
from monasca_common.kafka.producer.client import Client
from monasca_common.kafka.producer.ledger import Ledger, Unreported
from monasca_common.kafka.producer.outcome import Outcome
from monasca_common.kafka.producer.poller import Poller
from monasca_common.kafka.producer.report import DeliveryReport
from monasca_common.kafka.producer.topic_limits import TopicLimits

_GRACE_SECONDS = 0.5


class Retirement:
    def __init__(self, ledger: Ledger, client: Client, poller: Poller, clock: Clock) -> None:
        self._ledger = ledger
        self._client = client
        self._poller = poller
        self._clock = clock

    # At a close

    def settle_all(self, deadline: float) -> None:
        """Settle everything. If it is interrupted, the book still has what is not reported, for the next close."""
        ledger, limits = self._ledger, self._client.limits
        self._client.detach()  # a send that enters the book from here on sees it
        hangs = self._take_over_serving(deadline)  # then nothing more is asked of the client
        while not hangs and self._wait_for_all(deadline - self._clock.monotonic()) and ledger.busy:
            pass  # senders were faster than the close
        ledger.shut()
        limits.abandon()
        if ledger.busy and not hangs:
            for transport in limits.transports():
                transport.purge()
            self._wait_for_all(_GRACE_SECONDS / 2)
            if not self._take_over_serving(deadline) and self._poller.drained():
                ledger.settle_what_no_client_had()
        left = DeliveryAbandoned("the producer was closed before an answer came")
        ledger.settle_all(Outcome.UNKNOWN, left)

    def last_report(self) -> DeliveryReport:
        unreported = Unreported()
        try:
            self._ledger.collect(unreported, settled_only=True)  # what enters now is its sender's to take out
            return DeliveryReport(unreported.pendings, delivered_before=unreported.delivered)
        except BaseException:
            self._ledger.give_back(unreported)
            raise

    def end(self, deadline: float) -> None:
        self._poller.stop(max(deadline - self._clock.monotonic(), _GRACE_SECONDS / 2))
        self.release(self._client.limits)

    # At a reopen

    def replace(self, limits: TopicLimits) -> None:
        """Use another client, and release the one before."""
        client, before = self._client, self._client.limits
        client.detach()
        before.abandon()  # not under `serving`, which is taken under its lock
        with client.unserved():
            if self._take_over_serving(self._clock.monotonic()):
                self._poller.start()  # it may be its thread that hangs
            with self._ledger.serving:
                lost = DeliveryAbandoned("the producer was reopened before an answer came")
                self._ledger.settle_all(Outcome.UNKNOWN, lost)
                self._ledger.start_again()
                limits.recreated_topics = before.recreated_topics
                client.use(limits, self._poller.wake, self._ledger.know)
        self.release(before)

    # At both

    def release(self, limits: TopicLimits) -> None:
        limits.abandon()
        with self._ledger.serving:
            transports = limits.release()
        self._client.close(transports, _GRACE_SECONDS)

    def _wait_for_all(self, timeout: float) -> bool:
        return self._poller.wait(self._ledger.watch_all(), timeout)

    def _take_over_serving(self, deadline: float) -> bool:
        left = deadline - self._clock.monotonic()
        return self._ledger.take_over_serving(max(0.0, left) + _GRACE_SECONDS / 2)
