# SPDX-License-Identifier: Apache-2.0
"""Checks at the start of a service whether its topics can lose messages; see [monitoring] durability_check."""

from __future__ import annotations

import fnmatch
import logging
import multiprocessing
import signal
from collections import defaultdict
from collections.abc import Iterable, Mapping
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

_WARN_SECONDS = 3.0  # the maximum delay of a start if the brokers do not respond
_REFUSE_SECONDS = 30.0
_ALL = "`monasca-common durability check` shows all findings"


@dataclass(frozen=True, slots=True)
class StartFindings:
    """The errors found. ``unknown``: the reason why the check failed, or ``""``."""

    errors: tuple[Finding, ...] = ()
    unknown: str = ""


def check_at_start(service: str, conf: cfg.ConfigOpts) -> None:
    """Check the topics of a service that `services` defines. Raises `ConfigurationError` if it must not start."""
    mode = start_check_settings(conf).durability_check
    if mode == "off":
        return
    try:
        topics = topics_by_group(service, conf)
    except ConfigurationError:
        if mode == "refuse":
            raise
        return  # the service itself reports errors in its options
    found = _check_in_child(topics, conf, _REFUSE_SECONDS if mode == "refuse" else _WARN_SECONDS)
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
        f"{reason}; durability_check in group [{MONITORING_GROUP}] is refuse: set it to warn to start anyway"
    )


def _summary(errors: tuple[Finding, ...]) -> str:
    first = errors[0]
    more = f" (the first of {len(errors)} such findings)" if len(errors) > 1 else ""
    return f"topic {first.topic}: {first.text}{more}"


def _check_in_child(topics: Mapping[str, set[str]], conf: cfg.ConfigOpts, seconds: float) -> StartFindings:
    """Query the brokers in a child process, because a process that forks workers must have no Kafka client."""
    forking = multiprocessing.get_context("fork")
    results, child_end = forking.Pipe(duplex=False)
    child = forking.Process(target=_send_findings, args=(topics, conf, child_end), daemon=True)
    child.start()
    child_end.close()
    try:
        if not results.poll(seconds):
            return StartFindings(unknown=f"the brokers did not respond within {seconds:g} s")
        findings = results.recv()
        assert isinstance(findings, StartFindings)
        return findings
    except EOFError:
        return StartFindings(unknown="the check's process exited without a result")
    finally:
        results.close()
        child.kill()
        child.join()


def _send_findings(topics: Mapping[str, set[str]], conf: cfg.ConfigOpts, results: Connection) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the handler inherited from the parent must not run
    try:
        results.send(StartFindings(tuple(durability_errors(topics, conf))))
    except MessagingError as error:
        results.send(StartFindings(unknown=str(error)))


def topics_by_group(service: str, conf: cfg.ConfigOpts) -> dict[str, set[str]]:
    """Return the service's topics by the option group of their brokers. Raises `ConfigurationError`."""
    names = defaultdict(set)
    for topic in services.topics(service, conf):
        if connection_settings(conf, topic.group).has_cluster:
            names[topic.group].add(topic.name)
    return names


def durability_errors(topics: Mapping[str, set[str]], conf: cfg.ConfigOpts) -> list[Finding]:
    """Return the errors found for existing topics. Raises `MessagingError`."""
    errors = []
    for group, names in sorted(topics.items()):
        admin = plugins.load_admin(conf, group)
        for described in topic_durability(admin, _existing(names, admin.partition_counts())):
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
