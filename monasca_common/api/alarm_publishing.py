# SPDX-License-Identifier: Apache-2.0
"""Publishes what the API put into the outbox of alarms, after the commit."""

from __future__ import annotations

import logging

from monasca_common.alarms import outbox
from monasca_common.alarms.database import AlarmsDatabase
from monasca_common.alarms.outbox import Unpublished
from monasca_common.api.problems import Problem
from monasca_common.api.publishing import Publishing, TopicMessages
from monasca_common.api.settings import ApiSettings
from monasca_common.kafka import Record
from monasca_common.kafka.errors import MessagingError
from monasca_common.storage.errors import StorageError

LOG = logging.getLogger(__name__)

_MOST_AT_ONCE = 100


def publish_due(
    database: AlarmsDatabase, publishing: Publishing, settings: ApiSettings, due: Unpublished, now_ms: int
) -> None:
    """Publish ``due``, and some of what others left. The change is committed, so what fails here is logged and left in
    the outbox: the evaluator publishes it, or counts it as lost."""
    try:
        every = outbox.oldest(database, before_ms=now_ms - outbox.LEFT_AFTER_MS, limit=_MOST_AT_ONCE, due=due)
        if not every:
            return  # another has published it
        records = [Record(each.value, key=each.key.encode(), message_id=each.message_id) for each in every]
        (report,) = publishing.attempt(TopicMessages(settings.alarm_transitions_topic, records), keyed=True)
        undelivered = (*report.failed, *report.unknown)
        if undelivered:
            LOG.warning("%d transitions of alarms stay in the outbox: %s", len(undelivered), undelivered[0].error)
        kept = {delivery.index for delivery in undelivered}
        outbox.remove(database, [each for index, each in enumerate(every) if index not in kept])
    except (Problem, StorageError, MessagingError) as error:
        reason = error.description if isinstance(error, Problem) else error
        LOG.warning("A transition of an alarm stays in the outbox: %s", reason)
