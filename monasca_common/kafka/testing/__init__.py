# SPDX-License-Identifier: Apache-2.0
"""Fixtures and contracts that users' own tests import (needs the ``test`` extra)."""

from monasca_common.kafka.testing.memory import MemoryKafka
from monasca_common.kafka.transport.memory import Delay, Fail, LoseAnswer, VirtualClock

__all__ = ["Delay", "Fail", "LoseAnswer", "MemoryKafka", "VirtualClock"]
