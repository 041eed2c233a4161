# SPDX-License-Identifier: Apache-2.0
"""What can go wrong with a job.

::

    ConfigurationError
    └── InvalidSpecifications   at least one row breaks a rule (`faults` tells each)
    PipelineError
    ├── Fenced                  somebody else has accounted for these offsets: read again from what is stored
    ├── RecordsLost             the log no longer has what is to be read next
    ├── NotPublished            aggregates are stored, and Kafka does not take all of them
    ├── StagingLost             what executors have staged is not all there: compute it again
    ├── AlreadyArchived         the archive has these offsets: its position was put back
    ├── ArchiveUnavailable      the file system that the archive is on cannot do it now
    ├── ArchiveDamaged          a file of the archive is gone, or is not whole
    ├── ReplayFailed            some of it was not sent: to repeat it adds nothing twice
    ├── SparkUnavailable        Java, pyspark or what it needs is missing, or Spark does not start
    ├── SparkFailed             it does not come to a result; of a job that does not try again
    ├── BackfillStopped         it was asked to stop before it was done
    └── NotAggregated           a record that counts nowhere; it becomes a dead letter, which says why
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from monasca_common.kafka.errors import ConfigurationError


@dataclass(frozen=True, slots=True, order=True)
class Fault:
    """``source``: the file or table; ``row``: from 1; ``field``: like ``aggregation_params_map.filter_by_list[0]``."""

    source: str
    row: int
    field: str
    rule: str

    def __str__(self) -> str:
        return f"{self.source} row {self.row}: {self.field} {self.rule}".replace(":  ", ": ")


class InvalidSpecifications(ConfigurationError):
    """Every fault of every file, for whoever mends one wants to see all."""

    def __init__(self, faults: Iterable[Fault]) -> None:
        self.faults = tuple(sorted(faults))
        super().__init__("\n".join(map(str, self.faults)))


class PipelineError(Exception):
    """Base of what a job raises, beside the errors of Kafka and of storage."""


class Fenced(PipelineError):
    """Another process runs this job and was faster; nothing of the batch was stored."""

    def __init__(self, topic: str, partition: int, start: int, stored: int | None) -> None:
        where = "nothing is stored" if stored is None else f"all below offset {stored} is stored"
        super().__init__(
            f"a batch of {topic}/{partition} begins at offset {start}, but {where}: another process runs this job"
        )


class RecordsLost(PipelineError):
    """Retention has passed the position: these records are in no aggregate, and never will be."""


class NotPublished(PipelineError):
    """Nothing is lost: what is not published stays due."""


class StagingLost(PipelineError):
    """What executors say they have staged is not what the database holds."""


class AlreadyArchived(PipelineError):
    """The archive's position was put back: what it has would be there twice."""

    def __init__(self, group: str, topic: str, partition: int, start: int, last: int) -> None:
        super().__init__(
            f"a batch of {topic}/{partition} begins at offset {start}, but the archive of {group} has records up to "
            f"offset {last}: its position was put back; `monasca-common offsets reset` moves it to {last + 1}"
        )


class ArchiveUnavailable(PipelineError):
    """A passing condition, as far as one can tell: the message names the path and what its file system says."""


class ArchiveDamaged(PipelineError):
    """Somebody else has removed a file that the manifest names, or a file of the archive is cut or overwritten."""


class ReplayFailed(PipelineError):
    """What was sent before is sent; the whole may be repeated."""


class SparkUnavailable(PipelineError):
    """The message says what to install."""


class SparkFailed(PipelineError):
    """What an executor, or Spark itself, said first; all of it is in Spark's log."""


class BackfillStopped(PipelineError):
    """Nothing was replaced: run it again."""


class NotAggregated(PipelineError):
    """A record that is in no aggregate; the text says why, and quotes no value."""
