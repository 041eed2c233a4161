# SPDX-License-Identifier: Apache-2.0
"""Configuration: reads and checks the options that settings declare."""

from monasca_common.kafka.config.configuration import (
    connection_settings,
    consumer_settings,
    producer_settings,
)
from monasca_common.kafka.config.groups import (
    CONSUMER_GROUPS,
    KAFKA_GROUP,
    OptionGroup,
    group_of,
    register,
    with_defaults,
)
from monasca_common.kafka.config.reader import GroupReader
from monasca_common.kafka.declaration import LinesOpt, LiteralOpt, Option, declared, made_of, option, options_of

__all__ = [
    "CONSUMER_GROUPS",
    "KAFKA_GROUP",
    "GroupReader",
    "LinesOpt",
    "LiteralOpt",
    "Option",
    "OptionGroup",
    "connection_settings",
    "consumer_settings",
    "declared",
    "group_of",
    "made_of",
    "option",
    "options_of",
    "producer_settings",
    "register",
    "with_defaults",
]
