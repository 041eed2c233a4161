# SPDX-License-Identifier: Apache-2.0
"""Logins with Keystone: requests a token for name, password and project, and checks its roles with oslo.policy."""

from __future__ import annotations

import datetime
import logging

from keystoneauth1 import exceptions, session
from keystoneauth1.identity import v3
from oslo_config import cfg
from oslo_policy import policy

from monasca_common.kafka.errors import RetriableError
from monasca_common.operations.dashboard.sessions import Account
from monasca_common.operations.dashboard.settings import DashboardSettings
from monasca_common.operations.policy_rules import open_enforcer

LOG = logging.getLogger(__name__)

VIEW = "monasca_dashboard:look"

_TIMEOUT_SECONDS = 10.0


def list_rules() -> list[policy.RuleDefault]:
    """Return the rules for oslo.policy's sample generator."""
    return [policy.RuleDefault(VIEW, "role:admin", description="View the dashboard, which shows data of all tenants.")]


class KeystoneLogin:
    """Authenticates with Keystone at each login; passwords are not stored."""

    def __init__(self, settings: DashboardSettings, conf: cfg.ConfigOpts) -> None:
        """Raises `ConfigurationError` for invalid rules."""
        assert settings.keystone_url is not None, "the settings were checked"
        self._url = settings.keystone_url
        self._domain = settings.keystone_domain
        self._verify: str | bool = settings.keystone_ca_file or True
        self._enforcer = open_enforcer(conf, list_rules())

    def log_in(self, user: str, password: str, project: str) -> Account | None:
        """Return the account, or ``None`` if Keystone or the rules refuse access. Raises `RetriableError` if Keystone
        does not respond."""
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
            LOG.warning("Keystone at %s does not respond: %s", self._url, type(error).__name__)
            raise RetriableError("Keystone does not respond: try again") from None
        caller = {"roles": list(access.role_names or ()), "project_id": access.project_id, "user_id": access.user_id}
        if not self._enforcer.authorize(VIEW, {"project_id": access.project_id}, caller, do_raise=False):
            return None
        assert access.expires is not None, "every Keystone v3 token expires"
        left = access.expires - datetime.datetime.now(datetime.UTC)
        return Account(user, left.total_seconds())
