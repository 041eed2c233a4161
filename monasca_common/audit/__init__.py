# SPDX-License-Identifier: Apache-2.0
"""Did every message that was sent arrive at every tier? Tiers report what they had, and the reports are reconciled."""
