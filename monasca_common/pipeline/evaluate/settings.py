# SPDX-License-Identifier: Apache-2.0
"""The frozen settings of the job ``evaluate``, declared here as the options of ``[pipeline_evaluate]``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from oslo_config import cfg

from monasca_common.alarms.settings import database_settings
from monasca_common.kafka.config import OptionGroup, declared, made_of, option, options_of, with_defaults
from monasca_common.pipeline.settings import BatchLimits, StreamGroup, StreamSettings, decoded_stream
from monasca_common.runtime.envelopes import FORMATS

EVALUATE_GROUP = "pipeline_evaluate"


@dataclass(frozen=True, slots=True)
class EvaluateSettings:
    """The settings of the job. ``stream.connection``: the alarms database."""

    stream: StreamSettings
    alarm_transitions_topic: str = field(
        metadata=declared(
            default="alarm-state-transitions", help="The topic to which transitions of alarms are published."
        )
    )
    transitions_format: str = option("json", choices=FORMATS, help="Format of alarm-transition messages in Kafka.")
    delay_seconds: int = option(
        30,
        minimum=0,
        maximum=3_600,
        unit="seconds",
        help="The time from the end of a window to its evaluation. Too small: measurements that arrive later do not "
        "count. Larger: alarms change later, except when one measurement is sufficient to change the state.",
    )
    outage_grace_seconds: int = option(
        300,
        minimum=0,
        maximum=86_400,
        unit="seconds",
        help="The time after an outage of Kafka during which windows of the outage do not count as empty, because "
        "agents resend measurements. Too small: an outage makes alarms UNDETERMINED. Larger: an agent that stopped "
        "during the outage is detected later.",
    )
    limits: BatchLimits = field(default_factory=BatchLimits, metadata=made_of(BatchLimits))


_STREAM = tuple(each for each in options_of(StreamSettings) if each.name != "connection")
_EVALUATE = StreamGroup(
    OptionGroup(
        EVALUATE_GROUP,
        with_defaults(
            (*_STREAM, *options_of(EvaluateSettings)), {"trigger_seconds": 1.0, "duplicates_lookback": 10_000}
        ),
    ),
    MappingProxyType({"topic": ["metrics"], "group_id": "spark-evaluate"}),
)


def list_opts() -> Sequence[tuple[str, Sequence[cfg.Opt]]]:
    """Return the group with its options, for oslo.config's generator of sample files."""
    return [_EVALUATE.listed()]


def evaluate_settings(conf: cfg.ConfigOpts) -> EvaluateSettings:
    """Return the settings of the job ``evaluate``. Raises `ConfigurationError`, `NoAlarmsDatabase`."""
    connection = database_settings(conf).connection
    read, stream = _EVALUATE.settings(conf, connection)
    if read["transitions_format"] == "avro" and stream.registry is None:
        raise read.error("transitions_format", "is avro: set url in group [schema_registry], or write json")
    return read.settings(
        EvaluateSettings,
        stream=decoded_stream(conf, read, stream),
        limits=read.settings(BatchLimits),
    )
