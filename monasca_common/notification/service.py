# SPDX-License-Identifier: Apache-2.0
"""The notification service: a process with a member of the consumer group and two loops, and its signals.

SIGTERM: notifications in progress are sent and recorded, and the process ends with status 0. SIGHUP: the configuration
is read again, and the process is replaced after the notifications in progress. After a crash, the process is replaced,
and the notifications in progress are sent again under the same id, and counted.
"""

from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor

import cotyledon
from cotyledon.types import WorkerId
from oslo_config import cfg
from prometheus_client import CollectorRegistry

from monasca_common.alarms.address_keys import PLAIN, AddressKeys, address_keys
from monasca_common.alarms.database import AlarmsDatabase
from monasca_common.alarms.notification_methods import NotificationMethods, types
from monasca_common.alarms.silences import Silences
from monasca_common.kafka.clock import SystemClock
from monasca_common.notification.deferred_sender import RETRY_THREADS, DeferredSender
from monasca_common.notification.delivery import NotificationDelivery
from monasca_common.notification.handlers import ChangesHandler, RetriesHandler
from monasca_common.notification.ledger import Ledger
from monasca_common.notification.member import NotificationMember, service_health
from monasca_common.notification.metrics import NotificationMetrics
from monasca_common.notification.notifiers.base import Notifier
from monasca_common.notification.notifiers.plugins import load_notifiers
from monasca_common.notification.pipeline import Pipeline
from monasca_common.notification.retention import LedgerRetention
from monasca_common.notification.settings import (
    NOTIFICATION_GROUP,
    NotificationSettings,
    notification_settings,
    status_settings,
)
from monasca_common.runtime import joined, shown_url, started, stopped
from monasca_common.runtime.envelopes import EnvelopeReader
from monasca_common.runtime.member_health import MemberStatus
from monasca_common.runtime.service import Plan, ServiceThreads, service_manager
from monasca_common.runtime.status_board import ProcessStatus, StatusBoard, StatusReporter
from monasca_common.runtime.status_server import StatusServer, listen_for_status

LOG = logging.getLogger(__name__)


class NotificationWork:
    """The member and the loops of a process. Create it after the fork."""

    def __init__(
        self,
        settings: NotificationSettings,
        notifiers: dict[str, Notifier],
        keys: AddressKeys = PLAIN,
    ) -> None:
        clock, processing = SystemClock(), settings.processing
        self._database = AlarmsDatabase(settings.database, grouped=True)
        self.metrics = NotificationMetrics(notifiers)
        self.metrics.serve_stored(self._database)

        methods, ledger = NotificationMethods(self._database, keys), Ledger(self._database)
        pipeline = Pipeline(self._database, settings.rules, clock, self.metrics.count)
        delivery = NotificationDelivery(
            ledger, notifiers, settings.retry.policy(), clock, ttl_seconds=processing.ttl, metrics=self.metrics
        )
        self._methods = ThreadPoolExecutor(processing.number, thread_name_prefix="methods")
        self._retries = ThreadPoolExecutor(RETRY_THREADS, thread_name_prefix="retries")
        changes = ChangesHandler(
            methods,
            pipeline,
            delivery,
            clock,
            envelopes=EnvelopeReader(settings.registry),
            ttl_seconds=processing.ttl,
            threads=processing.number,
            executor=self._methods,
        )
        retries = RetriesHandler(
            methods,
            pipeline,
            delivery,
            clock,
            threads=RETRY_THREADS,
        )
        member = NotificationMember(settings, changes, clock)
        loops = (
            DeferredSender(pipeline, methods, retries, self._retries, clock, settings.consumer.stop_timeout_seconds),
            LedgerRetention(ledger, Silences(self._database), clock, processing.retention_ms),
        )
        board = StatusBoard([ProcessStatus([MemberStatus(member.name)])])
        self._reporter = StatusReporter(board, 0, [member], CollectorRegistry())
        self.health = service_health(board.members, [loop.health for loop in loops])
        self._threads = ServiceThreads((member, *loops))

    def start(self) -> None:
        self._threads.start()
        self._reporter.start()

    def stop(self) -> dict[str, int]:
        """Return the counts of notifications of this process."""
        self._threads.stop()
        self._reporter.stop()
        for executor in (self._methods, self._retries):
            executor.shutdown(wait=False, cancel_futures=True)
        self._database.close()
        return dict(self.metrics.counts)


class NotificationPlan(Plan):
    """The settings, the notifiers and the keys of addresses. A new status port requires a restart."""

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        super().__init__(conf)
        self.status = status_settings(conf)
        self.listener = listen_for_status(NOTIFICATION_GROUP, self.status)

    def read(self, conf: cfg.ConfigOpts) -> None:
        settings, names = notification_settings(conf), types()
        notifiers, keys = dict(zip(names, load_notifiers(conf, *names), strict=True)), address_keys(conf)
        self.settings, self.notifiers, self.keys = settings, notifiers, keys


class NotificationWorker(cotyledon.Service):
    """The process that handles messages."""

    name = "notification"

    def __init__(self, worker_id: WorkerId, plan: NotificationPlan) -> None:
        super().__init__(worker_id)
        self._work = NotificationWork(plan.settings, plan.notifiers, plan.keys)
        self._status: StatusServer | None = None
        if plan.listener is not None:
            self._status = StatusServer(plan.listener, self._work.health, self._work.metrics.registry)

    def run(self) -> None:
        self._work.start()
        if self._status is not None:
            threading.Thread(target=self._status.serve_forever, name="status", daemon=True).start()

    def terminate(self) -> None:
        LOG.info("%s", stopped("notification", **self._work.stop()))


def run(conf: cfg.ConfigOpts) -> None:
    """Run the service that ``conf`` describes, and end the process, with status 0 after SIGTERM.

    Raises `ConfigurationError` if it cannot start.
    """
    plan = NotificationPlan(conf)
    manager = service_manager(plan, [plan.settings.consumer])
    manager.add(NotificationWorker, args=(plan,))
    consumer = plan.settings.consumer
    facts = {
        "reads": f"{','.join(consumer.topics)} as {consumer.group_id}",
        "from_brokers": consumer.connection.bootstrap_servers,
        "database": shown_url(plan.settings.database.connection),
        "types": joined(types()),
        "status_at": plan.status.address,
    }
    LOG.info("%s", started("notification", **facts))
    manager.run()
