# SPDX-License-Identifier: Apache-2.0
"""Access rules of oslo.policy. An unusable policy file is an error; the default rules are not used instead."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence

from oslo_config import cfg
from oslo_policy import policy

from monasca_common.kafka.config import config_file
from monasca_common.kafka.errors import ConfigurationError

LOG = logging.getLogger(__name__)

# A file with a list instead of a mapping raises AttributeError; one with a number instead of a rule, TypeError.
_UNUSABLE = (policy.InvalidDefinitionError, cfg.Error, ValueError, OSError, AttributeError, TypeError)


class _Enforcer(policy.Enforcer):
    """Reads the policy file again when it changes. While the file cannot be used, the current rules remain."""

    _modified_ns: int | None = None
    _failure = ""

    def load_rules(self, force_reload: bool = False) -> None:
        try:
            if self.policy_path:
                # Without the file, oslo.policy uses the default rules; it ignores a file older than the previous one.
                modified_ns = os.stat(self.policy_path).st_mtime_ns
                force_reload, self._modified_ns = modified_ns != self._modified_ns, modified_ns
            super().load_rules(force_reload)
            self._failure = ""
        except _UNUSABLE as error:
            if not self.rules:
                raise
            if isinstance(error, OSError):
                self._modified_ns = None  # a file that returns is read, whatever its time
            if self._failure != str(error):
                self._failure = str(error)
                LOG.error("the policy file cannot be used; keeping the current rules: %s", error)


def open_enforcer(conf: cfg.ConfigOpts, rules: Sequence[policy.RuleDefault]) -> policy.Enforcer:
    """Return the enforcer of these rules and ``[oslo_policy] policy_file``. Raises `ConfigurationError` if the file is
    missing, unreadable or invalid."""
    enforcer = _Enforcer(conf)
    enforcer.register_defaults(rules)
    named = conf.oslo_policy.policy_file
    if config_file.is_set(conf, "oslo_policy", "policy_file") and conf.find_file(named) is None:
        raise ConfigurationError(f"policy_file in group [oslo_policy] is {named}, which is not found: correct the path")
    try:
        enforcer.load_rules()
        enforcer.check_rules(raise_on_violation=True)
    except _UNUSABLE as error:
        raise ConfigurationError(f"the rules of policy_file in group [oslo_policy] cannot be used: {error}") from error
    return enforcer
