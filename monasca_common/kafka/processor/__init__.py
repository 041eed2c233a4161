# SPDX-License-Identifier: Apache-2.0
"""Processing: handler calls with retries, dead letters and outputs, followed by commits."""

from monasca_common.kafka.processor.processor import Processor

__all__ = ["Processor"]
