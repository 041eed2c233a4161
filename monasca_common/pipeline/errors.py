# SPDX-License-Identifier: Apache-2.0
"""The errors of a job, in addition to those of Kafka and storage, and the reason why a message is rejected."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from monasca_common.kafka.errors import ConfigurationError

MALFORMED, TOO_NEW, TOO_OLD = "malformed", "too_new", "too_old"


@dataclass(frozen=True, slots=True, order=True)
class RowFault:
    """``source``: file or table; ``row``: from 1; ``field``: such as ``aggregation_params_map.filter_by_list[0]``."""

    source: str
    row: int
    field: str
    rule: str

    def __str__(self) -> str:
        return f"{self.source} row {self.row}: {self.field} {self.rule}".replace(":  ", ": ")


class InvalidSpecifications(ConfigurationError):
    """Lists all faults in all files, so that an operator can correct them in one pass."""

    def __init__(self, faults: Iterable[RowFault]) -> None:
        self.faults = tuple(sorted(faults))
        super().__init__("\n".join(map(str, self.faults)))


@dataclass(frozen=True, slots=True)
class Rejection:
    """The reason why a message becomes a dead letter. ``kind``: `MALFORMED`, `TOO_NEW` or `TOO_OLD`.

    ``reason`` names the field and the rule, without quoting a value.
    """

    kind: str
    reason: str


class PipelineError(Exception):
    """Base of the errors that jobs raise in addition to those of Kafka and storage."""


class Fenced(PipelineError):
    """Another process runs this job and stored these offsets first; the batch was not stored."""

    def __init__(self, topic: str, partition: int, start: int, stored: int | None) -> None:
        where = "nothing is stored" if stored is None else f"all records below offset {stored} are stored"
        super().__init__(
            f"a batch of {topic}/{partition} begins at offset {start}, but {where}: another process runs this job; "
            "stop one of them"
        )


class EvaluatorFenced(Fenced):
    """Another process evaluates the same alarms; the transaction was not stored."""

    def __init__(self, job: str) -> None:
        PipelineError.__init__(
            self, f"the evaluator of {job} is ahead of this process: another process runs this job; stop one of them"
        )


class RecordsLost(PipelineError):
    """Retention removed records before they were read. No aggregate will count them."""


class NotPublished(PipelineError):
    """Kafka did not acknowledge all aggregates. No aggregate is lost, because unpublished periods stay due."""


class StagingLost(PipelineError):
    """Some rows that executors reported as staged are not in the database."""


class AlreadyArchived(PipelineError):
    """The archive's position was moved back: records would be archived twice."""

    def __init__(self, group: str, topic: str, partition: int, start: int, last: int) -> None:
        super().__init__(
            f"a batch of {topic}/{partition} begins at offset {start}, but the archive of {group} has records up to "
            f"offset {last}: its position was moved back; `monasca-common offsets reset` moves it to {last + 1}"
        )


class ArchiveUnavailable(PipelineError):
    """The archive is temporarily unavailable. The message contains the path and the error of the file system."""


class ArchiveDamaged(PipelineError):
    """A file in the manifest was removed, or a file of the archive is truncated or overwritten."""


class ReplayFailed(PipelineError):
    """A replay failed midway. Sent messages stay sent. The whole replay can be repeated."""


class SparkUnavailable(PipelineError):
    """Spark cannot start. The message states which package to install."""


class SparkFailed(PipelineError):
    """Spark failed. The message is the first line of the executor's or Spark's error; the full error is in Spark's
    log."""


class BackfillStopped(PipelineError):
    """The backfill stopped before it had finished. No window was replaced: run the backfill again."""


class NotAggregated(PipelineError):
    """A record was not aggregated. The message states the reason without quoting a value."""


class NotEvaluated(PipelineError):
    """A record was not evaluated for alarms. The message states the reason without quoting a value."""
