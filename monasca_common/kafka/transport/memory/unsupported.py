# SPDX-License-Identifier: Apache-2.0
"""What the memory transport lacks, said aloud."""

from __future__ import annotations

from monasca_common.kafka.errors import ConfigurationError


def no_transactions() -> ConfigurationError:
    """The error of every transactional call."""
    return ConfigurationError(
        "the memory transport has no transactions: test them on a real broker (driver 'kafka'), or write the "
        "offsets with the results instead"
    )
