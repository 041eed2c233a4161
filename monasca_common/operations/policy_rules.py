# SPDX-License-Identifier: Apache-2.0
"""Access rules of oslo.policy. An unusable policy file is an error; the default rules are not used instead."""

from __future__ import annotations

from collections.abc import Sequence

from oslo_config import cfg
from oslo_policy import policy

from monasca_common.kafka.config import config_file
from monasca_common.kafka.errors import ConfigurationError


def open_enforcer(conf: cfg.ConfigOpts, rules: Sequence[policy.RuleDefault]) -> policy.Enforcer:
    """Return the enforcer of these rules and ``[oslo_policy] policy_file``. Raises `ConfigurationError` if the file is
    missing, unreadable or invalid."""
    enforcer = policy.Enforcer(conf)
    enforcer.register_defaults(rules)
    named = conf.oslo_policy.policy_file
    if config_file.is_set(conf, "oslo_policy", "policy_file") and conf.find_file(named) is None:
        raise ConfigurationError(f"policy_file in group [oslo_policy] is {named}, which is not found: correct the path")
    try:
        enforcer.load_rules()
        enforcer.check_rules(raise_on_violation=True)
    # A file with a list instead of a mapping raises AttributeError.
    except (policy.InvalidDefinitionError, cfg.Error, ValueError, OSError, AttributeError) as error:
        raise ConfigurationError(f"the rules of policy_file in group [oslo_policy] cannot be used: {error}") from error
    return enforcer
