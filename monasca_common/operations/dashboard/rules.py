# SPDX-License-Identifier: Apache-2.0
"""The oslo.policy rule for access to the dashboard."""

from oslo_policy import policy

VIEW = "monasca_dashboard:look"


def list_rules() -> list[policy.RuleDefault]:
    """Return the rules for oslo.policy's sample generator."""
    return [policy.RuleDefault(VIEW, "role:admin", description="View the dashboard, which shows data of all tenants.")]
