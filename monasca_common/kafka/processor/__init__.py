# SPDX-License-Identifier: Apache-2.0
"""Processing: a handler's calls, its retries, dead letters and outputs, and the commits that follow."""

from monasca_common.kafka.processor.processor import Processor

__all__ = ["Processor"]
