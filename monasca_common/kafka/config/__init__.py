# SPDX-License-Identifier: Apache-2.0
"""Configuration: options are declared by settings, read and checked here."""

from monasca_common.kafka.config.announcement import joined, shown_url, started, stopped
from monasca_common.kafka.config.configuration import (
    connection_settings,
    consumer_settings,
    producer_settings,
    unchecked_producer_options,
)
from monasca_common.kafka.config.groups import CONSUMER_GROUPS, group_of, register
from monasca_common.kafka.config.listener import check_listener, listen
from monasca_common.kafka.config.logs import register_logging, start_logging
from monasca_common.kafka.config.oslo_options import KAFKA_GROUP, OptionGroup, with_defaults
from monasca_common.kafka.config.reader import GroupReader
from monasca_common.kafka.declaration import Option, OptionType, declared, made_of, option, options_of

__all__ = [
    "CONSUMER_GROUPS",
    "KAFKA_GROUP",
    "GroupReader",
    "Option",
    "OptionGroup",
    "OptionType",
    "check_listener",
    "connection_settings",
    "consumer_settings",
    "declared",
    "group_of",
    "joined",
    "listen",
    "made_of",
    "option",
    "options_of",
    "producer_settings",
    "register",
    "register_logging",
    "shown_url",
    "start_logging",
    "started",
    "stopped",
    "unchecked_producer_options",
    "with_defaults",
]
