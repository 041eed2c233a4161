# SPDX-License-Identifier: Apache-2.0
"""The notification service: a worker with a member of the consumer group and two loops.

SIGTERM: notifications in progress are sent and recorded, and the process exits with status 0. SIGHUP: the configuration
is read again, and the worker is replaced once the notifications in progress have ended. After a crash, the worker is
replaced, and the notifications in progress are sent again under the same id, and counted.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

from oslo_config import cfg
from prometheus_client import CollectorRegistry

from monasca_common.alarms.address_keys import AddressKeys, address_keys
from monasca_common.alarms.database import AlarmsDatabase
from monasca_common.alarms.notification_methods import NotificationMethods, types
from monasca_common.alarms.silences import Silences
from monasca_common.kafka.clock import SystemClock
from monasca_common.notification.deferred_sender import DeferredSender
from monasca_common.notification.delivery import NotificationDelivery
from monasca_common.notification.handlers import NotificationHandler
from monasca_common.notification.ledger import Ledger, LedgerRetention
from monasca_common.notification.member import NotificationMember
from monasca_common.notification.metrics import NotificationMetrics, serve_stored
from monasca_common.notification.notifiers.base import Notifier, load_notifiers
from monasca_common.notification.pipeline import Pipeline
from monasca_common.notification.settings import NotificationSettings, notification_settings
from monasca_common.runtime.envelopes import EnvelopeReader
from monasca_common.runtime.logs import joined, shown_url
from monasca_common.runtime.member import WorkerPart
from monasca_common.runtime.member_health import MemberStatus
from monasca_common.runtime.metrics import ServiceMetrics
from monasca_common.runtime.workers import WorkersPlan, run_workers


class NotificationPlan(WorkersPlan):
    """The settings, the notifiers and the address keys. A new status port requires a restart."""

    service = "notification"
    gc_thresholds = gc.get_threshold()  # the objects of a connection are few and large
    settings: NotificationSettings
    notifiers: Mapping[str, Notifier]
    keys: AddressKeys

    def read(self, conf: cfg.ConfigOpts) -> None:
        settings, names = notification_settings(conf), types()
        notifiers, keys = dict(zip(names, load_notifiers(conf, *names), strict=True)), address_keys(conf)
        self.settings, self.notifiers, self.keys = settings, notifiers, keys

    def names(self) -> Sequence[Sequence[str]]:
        return [[",".join(self.settings.consumer.topics), "deferred", "retention"]]

    def open_parts(
        self, slot: int, statuses: Sequence[MemberStatus], stack: ExitStack
    ) -> tuple[Sequence[WorkerPart], CollectorRegistry]:
        settings, clock, processing = self.settings, SystemClock(), self.settings.processing
        database = AlarmsDatabase(settings.database)
        stack.callback(database.close)
        metrics = NotificationMetrics(self.notifiers)

        methods, ledger = NotificationMethods(database, self.keys), Ledger(database)
        pipeline = Pipeline(database, settings.rules, clock, metrics.count)
        delivery = NotificationDelivery(ledger, self.notifiers, settings.retry.policy(), processing, clock, metrics)
        executor = ThreadPoolExecutor(processing.number, thread_name_prefix="send")
        stack.callback(executor.shutdown, wait=False, cancel_futures=True)
        handler = NotificationHandler(
            methods, pipeline, delivery, clock, envelopes=EnvelopeReader(settings.registry), executor=executor
        )
        stop_seconds = settings.consumer.stop_timeout_seconds
        of_member, of_sender, of_retention = statuses
        parts = (
            NotificationMember(settings, handler, clock, of_member),
            DeferredSender(pipeline, methods, handler, executor, processing.number, clock, stop_seconds, of_sender),
            LedgerRetention(ledger, Silences(database), clock, processing.retention_ms, of_retention),
        )
        return parts, metrics.registry

    def serve_more(self, metrics: ServiceMetrics) -> None:
        serve_stored(metrics, AlarmsDatabase(self.settings.database))

    def facts(self) -> Mapping[str, object]:
        return {"database": shown_url(self.settings.database.connection), "types": joined(types())}


def run(conf: cfg.ConfigOpts) -> None:
    """Run the service that ``conf`` describes, and then exit the process, with status 0 after SIGTERM.

    Raises `ConfigurationError` if it cannot start.
    """
    run_workers(NotificationPlan(conf))
