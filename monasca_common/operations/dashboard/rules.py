# SPDX-License-Identifier: Apache-2.0
"""The rule of oslo.policy that says whose role may look at the dashboard."""

from oslo_policy import policy

LOOK = "monasca_dashboard:look"


def list_rules() -> list[policy.RuleDefault]:
    """The rules, read by oslo.policy's generator of sample files."""
    return [policy.RuleDefault(LOOK, "role:admin", description="Look at the dashboard, which shows all tenants.")]
