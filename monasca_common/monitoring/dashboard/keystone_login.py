# SPDX-License-Identifier: Apache-2.0
"""Users of Keystone: a name, a password and a project become a token, and oslo.policy says whether its roles may."""

from __future__ import annotations

import datetime
import logging

from keystoneauth1 import exceptions, session
from keystoneauth1.identity import v3
from oslo_config import cfg
from oslo_policy import policy

from monasca_common.kafka.config import config_file
from monasca_common.kafka.errors import ConfigurationError, RetriableError
from monasca_common.monitoring.dashboard.rules import LOOK, list_rules
from monasca_common.monitoring.dashboard.sessions import Account
from monasca_common.monitoring.dashboard.settings import DashboardSettings

LOG = logging.getLogger(__name__)

_TIMEOUT_SECONDS = 10.0


class KeystoneLogin:
    """Asks Keystone at each login; nothing of a password is kept."""

    def __init__(self, settings: DashboardSettings, conf: cfg.ConfigOpts) -> None:
        """Raises `ConfigurationError` for rules that cannot be read."""
        assert settings.keystone_url is not None, "the settings were checked"
        self._url = settings.keystone_url
        self._domain = settings.keystone_domain
        self._verify: str | bool = settings.keystone_ca_file or True
        self._enforcer = policy.Enforcer(conf)
        self._enforcer.register_defaults(list_rules())
        _check_rules(self._enforcer, conf)

    def log_in(self, user: str, password: str, project: str) -> Account | None:
        """``None``: refused, by Keystone or by the rules. Raises `RetriableError` where Keystone does not answer."""
        plugin = v3.Password(
            self._url,
            username=user,
            password=password,
            user_domain_name=self._domain,
            project_name=project,
            project_domain_name=self._domain,
        )
        try:
            access = plugin.get_access(session.Session(verify=self._verify, timeout=_TIMEOUT_SECONDS))
        except (exceptions.Unauthorized, exceptions.BadRequest):
            return None
        except exceptions.ClientException as error:
            LOG.warning("Keystone at %s cannot be asked: %s", self._url, type(error).__name__)
            raise RetriableError("Keystone does not answer: try again") from None
        caller = {"roles": list(access.role_names or ()), "project_id": access.project_id, "user_id": access.user_id}
        if not self._enforcer.authorize(LOOK, {"project_id": access.project_id}, caller, do_raise=False):
            return None
        assert access.expires is not None, "every token of Keystone v3 ends"
        left = access.expires - datetime.datetime.now(datetime.UTC)
        return Account(user, access.auth_token, left.total_seconds())


def _check_rules(enforcer: policy.Enforcer, conf: cfg.ConfigOpts) -> None:
    """oslo.policy goes on with its defaults where a file that was named is missing."""
    named = conf.oslo_policy.policy_file
    if config_file.is_set(conf, "oslo_policy", "policy_file") and conf.find_file(named) is None:
        raise ConfigurationError(f"policy_file in group [oslo_policy] is {named}, which is not found: correct the path")
    try:
        enforcer.load_rules()
        enforcer.check_rules(raise_on_violation=True)
    except (policy.InvalidDefinitionError, cfg.Error, ValueError, OSError, AttributeError) as error:  # of a list
        raise ConfigurationError(f"the rules of policy_file in group [oslo_policy] cannot be used: {error}") from error
