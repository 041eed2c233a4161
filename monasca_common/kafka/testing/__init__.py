# SPDX-License-Identifier: Apache-2.0
"""Fixtures for tests of services; they need the extra ``testing``."""

from monasca_common.kafka import extras

try:
    from monasca_common.kafka.testing.memory import Drained, MemoryKafka
    from monasca_common.kafka.testing.registry import MemoryRegistry
except ImportError as error:
    raise ImportError(extras.remedy(error, "testing")) from None
from monasca_common.kafka.transport.memory import Delay, Fail, Hang, LoseAnswer, VirtualClock

__all__ = ["Delay", "Drained", "Fail", "Hang", "LoseAnswer", "MemoryKafka", "MemoryRegistry", "VirtualClock"]
