# SPDX-License-Identifier: Apache-2.0
"""Checks at the start of a service whether its topics could lose messages: [monitoring] durability_check."""

from __future__ import annotations

import fnmatch
import logging
import multiprocessing
import signal
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from multiprocessing.connection import Connection

from oslo_config import cfg

from monasca_common.cli import services
from monasca_common.kafka import plugins
from monasca_common.kafka.config import connection_settings
from monasca_common.kafka.errors import ConfigurationError, MessagingError
from monasca_common.operations.durability import Finding, Severity, durability_findings, topic_durability
from monasca_common.operations.settings import MONITORING_GROUP, start_check_settings

LOG = logging.getLogger(__name__)

_WARN_SECONDS = 3.0  # a service that would start without brokers does so after this
_REFUSE_SECONDS = 30.0
_ALL = "`monasca-common durability check` shows all of it"


@dataclass(frozen=True, slots=True)
class StartFindings:
    """The errors found. ``unknown``: why the check failed, or empty."""

    errors: tuple[Finding, ...] = ()
    unknown: str = ""


def check_at_start(service: str, conf: cfg.ConfigOpts) -> None:
    """Check a service that `services` defines. Raises `ConfigurationError` if it must not start."""
    mode = start_check_settings(conf).durability_check
    if mode == "off":
        return
    found = _asked(service, conf, _REFUSE_SECONDS if mode == "refuse" else _WARN_SECONDS)
    if mode == "warn":
        if found.unknown:
            LOG.info("durability is unknown: %s", found.unknown)
        elif found.errors:
            LOG.warning("%s; %s", _summary(found.errors), _ALL)
    elif found.unknown:
        raise _refused(f"durability is unknown: {found.unknown}")
    elif found.errors:
        raise _refused(f"{_summary(found.errors)}; {_ALL}")


def _refused(reason: str) -> ConfigurationError:
    return ConfigurationError(
        f"{reason}; durability_check in group [{MONITORING_GROUP}] is refuse: with warn the service would start"
    )


def _summary(errors: tuple[Finding, ...]) -> str:
    first = errors[0]
    more = f" (the first of {len(errors)} such findings)" if len(errors) > 1 else ""
    return f"topic {first.topic}: {first.text}{more}"


def _asked(service: str, conf: cfg.ConfigOpts, seconds: float) -> StartFindings:
    """Ask in a child process, because no Kafka client may exist in a process that forks workers."""
    forking = multiprocessing.get_context("fork")
    ours, theirs = forking.Pipe(duplex=False)
    child = forking.Process(target=_ask, args=(service, conf, theirs), daemon=True)
    child.start()
    theirs.close()
    try:
        if not ours.poll(seconds):
            return StartFindings(unknown=f"the brokers did not answer within {seconds:g} s")
        answer = ours.recv()
        assert isinstance(answer, StartFindings)
        return answer
    except EOFError:
        return StartFindings(unknown="the process that checks has ended without an answer")
    finally:
        ours.close()
        child.kill()
        child.join()


def _ask(service: str, conf: cfg.ConfigOpts, answer: Connection) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the handler of the parent
    try:
        answer.send(StartFindings(tuple(start_errors(service, conf))))
    except MessagingError as error:
        answer.send(StartFindings(unknown=str(error)))


def start_errors(service: str, conf: cfg.ConfigOpts) -> list[Finding]:
    """Return the errors of the service's existing topics. Raises `MessagingError`."""
    names = defaultdict(set)
    for topic in services.topics(service, conf):
        names[topic.group].add(topic.name)
    errors = []
    for group, wanted in sorted(names.items()):
        if not connection_settings(conf, group).has_cluster:
            continue
        admin = plugins.load_admin(conf, group)
        for described in topic_durability(admin, _existing(wanted, admin.partition_counts())):
            errors += [each for each in durability_findings(described) if each.severity is Severity.ERROR]
    return errors


def _existing(wanted: Iterable[str], topics: Iterable[str]) -> list[str]:
    """Return the topics with these names or patterns; patterns exclude internal topics."""
    patterns = list(wanted)
    return [
        name
        for name in topics
        if name in patterns
        or (not name.startswith("__") and any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns))
    ]
