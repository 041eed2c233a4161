# SPDX-License-Identifier: Apache-2.0
"""The errors of a job.

::

    ConfigurationError
    └── InvalidSpecifications   at least one row breaks a rule (`faults` has each)
    PipelineError
    ├── Fenced                  another process has accounted for these offsets: read again from the stored ones
    │   └── EvaluatorFenced     another process has evaluated alarms: read the stored state again
    ├── RecordsLost             the log no longer has the next records to read
    ├── NotPublished            aggregates are stored, and Kafka has not acknowledged all of them
    ├── StagingLost             some of what executors staged is missing: compute it again
    ├── AlreadyArchived         the archive has these offsets: its position was put back
    ├── ArchiveUnavailable      the file system of the archive is unavailable
    ├── ArchiveDamaged          a file of the archive is missing, or is not whole
    ├── ReplayFailed            a part was not sent: repeating the replay adds nothing twice
    ├── SparkUnavailable        Java, pyspark or what it needs is missing, or Spark does not start
    ├── SparkFailed             Spark failed in a job that does not retry
    ├── BackfillStopped         the backfill was stopped before it had finished
    ├── NotEvaluated            a record that alarms do not count; its dead letter has the reason
    └── NotAggregated           a record that no aggregate counts; its dead letter has the reason
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from monasca_common.kafka.errors import ConfigurationError


@dataclass(frozen=True, slots=True, order=True)
class RowFault:
    """``source``: the file or table; ``row``: from 1; ``field``: like ``aggregation_params_map.filter_by_list[0]``."""

    source: str
    row: int
    field: str
    rule: str

    def __str__(self) -> str:
        return f"{self.source} row {self.row}: {self.field} {self.rule}".replace(":  ", ": ")


class InvalidSpecifications(ConfigurationError):
    """Lists all faults of all files, so that an operator can correct them in one pass."""

    def __init__(self, faults: Iterable[RowFault]) -> None:
        self.faults = tuple(sorted(faults))
        super().__init__("\n".join(map(str, self.faults)))


class PipelineError(Exception):
    """Base of the errors that a job raises, in addition to those of Kafka and of storage."""


class Fenced(PipelineError):
    """Another process runs this job and stored these offsets first; the batch was not stored."""

    def __init__(self, topic: str, partition: int, start: int, stored: int | None) -> None:
        where = "nothing is stored" if stored is None else f"all below offset {stored} is stored"
        super().__init__(
            f"a batch of {topic}/{partition} begins at offset {start}, but {where}: another process runs this job"
        )


class EvaluatorFenced(Fenced):
    """Another process evaluates the same alarms; the transaction was not stored."""

    def __init__(self, job: str) -> None:
        PipelineError.__init__(self, f"the evaluator of {job} is further than expected: another process runs this job")


class RecordsLost(PipelineError):
    """Retention has removed records before they were read: no aggregate will ever count them."""


class NotPublished(PipelineError):
    """Kafka did not acknowledge all aggregates. Nothing is lost: unpublished periods stay due."""


class StagingLost(PipelineError):
    """The database does not have all rows that executors reported as staged."""


class AlreadyArchived(PipelineError):
    """The archive's position was put back: its records would be archived twice."""

    def __init__(self, group: str, topic: str, partition: int, start: int, last: int) -> None:
        super().__init__(
            f"a batch of {topic}/{partition} begins at offset {start}, but the archive of {group} has records up to "
            f"offset {last}: its position was put back; `monasca-common offsets reset` moves it to {last + 1}"
        )


class ArchiveUnavailable(PipelineError):
    """A temporary error. The message names the path and quotes its file system."""


class ArchiveDamaged(PipelineError):
    """A file that the manifest names was removed, or a file of the archive is truncated or overwritten."""


class ReplayFailed(PipelineError):
    """A replay failed midway. Sent messages stay sent; the whole replay may be repeated."""


class SparkUnavailable(PipelineError):
    """Spark cannot start. The message says what to install."""


class SparkFailed(PipelineError):
    """Spark failed. The message is the first line of the executor's or Spark's error; the rest is in Spark's log."""


class BackfillStopped(PipelineError):
    """The backfill stopped before it had finished. Nothing was replaced: run it again."""


class NotAggregated(PipelineError):
    """A record that no aggregate counts; the text has the reason, and quotes no value."""


class NotEvaluated(PipelineError):
    """A record that alarms do not count; the text has the reason, and quotes no value."""
