# SPDX-License-Identifier: Apache-2.0
"""Authorization: determines the caller's tenant, and whether the caller's roles permit the request.

keystonemiddleware validates tokens (`monasca_common.api.tokens`); oslo.policy evaluates the rules. The tenant is the
token's project, never a field of the body. The request is authorized before it is routed and before its body is read.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import falcon
from oslo_config import cfg
from oslo_policy import policy

from monasca_common.api.limits import INTAKE_PATHS, OTLP_METRICS, PUBLIC_PATHS, REMOTE_WRITE
from monasca_common.api.log_fields import note_tenant
from monasca_common.api.problems import Problem, unprocessable
from monasca_common.api.resources.logs import PATH as LOGS
from monasca_common.api.settings import ApiSettings
from monasca_common.kafka.errors import ConfigurationError
from monasca_common.models.limits import TENANT
from monasca_common.operations.policy_rules import open_enforcer

LOG = logging.getLogger(__name__)

POST_METRICS = "monasca:post_metrics"
WRITE = "monasca:write"
READ = "monasca:read"
DELEGATE = "monasca:delegate"

_RULES = [
    policy.RuleDefault(
        POST_METRICS, "role:monasca-user or role:monasca-agent or role:admin", description="Post metrics."
    ),
    policy.RuleDefault(WRITE, "role:monasca-user or role:admin", description="Post, change or delete anything else."),
    policy.RuleDefault(
        READ, "role:monasca-user or role:monasca-read-only-user or role:admin", description="Read all resources."
    ),
    policy.RuleDefault(
        DELEGATE, "role:monitoring-delegate or role:admin", description="Act for the tenant named by ?tenant_id=."
    ),
]

_OF_METRICS = frozenset({"/v2.0/metrics", REMOTE_WRITE, OTLP_METRICS})
_WRITING = frozenset({"POST", "PUT", "PATCH", "DELETE"})


def check(conf: cfg.ConfigOpts) -> None:
    """Raise `ConfigurationError` for invalid rules or Keystone settings, without opening a connection."""
    # importing keystonemiddleware takes half a second, and noauth does not need it
    from monasca_common.api import tokens

    Authorization(conf)
    tokens.authenticated(lambda *_: [], conf)


def list_rules() -> list[policy.RuleDefault]:
    """Return the rules, for oslo.policy's sample generator."""
    return list(_RULES)


def scoped_tenant(environ: Mapping[str, Any]) -> str | None:
    """Return the tenant that a proxy has set for a request to an intake path (``trust_scope_header``), or ``None``."""
    tenant = environ.get("HTTP_X_SCOPE_ORGID") if environ.get("PATH_INFO", "").rstrip("/") in INTAKE_PATHS else None
    # Servers decode headers as Latin-1. Bytes that are not UTF-8 become surrogates, which a tenant must not have.
    return None if tenant is None else tenant.encode("latin-1").decode(errors="surrogateescape")


class NoAuthentication:
    """Falcon middleware that permits every request for any tenant."""

    def __init__(self, settings: ApiSettings) -> None:
        self._tenant = settings.noauth_tenant
        self._trust_scope = settings.trust_scope_header
        LOG.warning(
            "[api] auth_strategy = noauth: requests are not authenticated, so every client can read and write the data "
            "of every tenant; use it only for trials, at an address that no other client can reach"
        )

    def process_request(self, request: falcon.Request, _response: falcon.Response) -> None:
        if self._trust_scope and (scoped := scoped_tenant(request.env)) is not None:
            return _set_tenant(request, scoped)
        tenant = request.env.get("HTTP_X_PROJECT_ID") or self._tenant
        if request.query_string:
            tenant = _named_tenant(request) or tenant
        return _set_tenant(request, tenant)


class Authorization:
    """Falcon middleware that follows `tokens.authenticated`: sets ``request.context.tenant``, or raises `Problem`.

    ``trust_scope``: see `scoped_tenant`. Raises `ConfigurationError` for unreadable or unknown rules.
    """

    def __init__(self, conf: cfg.ConfigOpts, *, trust_scope: bool = False) -> None:
        self._trust_scope = trust_scope
        self._enforcer = open_enforcer(conf, _RULES)
        _refuse_unknown_rules(self._enforcer)

    def process_request(self, request: falcon.Request, _response: falcon.Response) -> None:
        if request.path in PUBLIC_PATHS:
            return None
        environ = request.env
        if self._trust_scope and (scoped := scoped_tenant(environ)) is not None:
            return _set_tenant(request, scoped)
        if environ.get("HTTP_X_IDENTITY_STATUS") != "Confirmed":
            raise _unauthorized("the request has no valid token: send one in X-Auth-Token")
        tenant = environ.get("HTTP_X_PROJECT_ID")
        if not tenant:
            raise _unauthorized("the token has no project: request a token scoped to a project")
        caller = {
            "roles": [role.strip() for role in environ.get("HTTP_X_ROLES", "").split(",")],
            "project_id": tenant,
            "user_id": environ.get("HTTP_X_USER_ID"),
        }
        rule = _rule_of(request)
        if not self._allows(rule, caller):
            raise _unauthorized(
                f"no role of the token permits this request ({rule}): use a token with a role that permits it"
            )
        named = _named_tenant(request)
        if named is not None and named != tenant:
            if not self._allows(DELEGATE, caller):
                raise Problem(
                    403, "Forbidden", "no role of the token permits acting for another tenant: omit tenant_id"
                )
            tenant = named
        return _set_tenant(request, tenant)

    def _allows(self, rule: str, caller: Mapping[str, Any]) -> bool:
        target = {"project_id": caller["project_id"]}
        return bool(self._enforcer.authorize(rule, target, dict(caller), do_raise=False))


def _refuse_unknown_rules(enforcer: policy.Enforcer) -> None:
    names = {rule.name for rule in _RULES}
    unknown = sorted(name for name in enforcer.file_rules if name.startswith("monasca:") and name not in names)
    if unknown:
        raise ConfigurationError(
            f"policy_file in group [oslo_policy] has unknown rules, {', '.join(unknown)}: the rules are "
            f"{', '.join(sorted(names))}"
        )


def _named_tenant(request: falcon.Request) -> str | None:
    """Return the tenant named by the query. Raises `Problem` (422) if ``tenant_id`` and ``project_id`` differ."""
    tenant = request.get_param("tenant_id")
    if request.path != LOGS:
        return tenant
    project = request.get_param("project_id")  # the parameter's name in the old log API
    if None not in (tenant, project) and tenant != project:
        raise unprocessable("tenant_id and project_id name different tenants: omit one of them")
    return tenant if tenant is not None else project


def _rule_of(request: falcon.Request) -> str:
    if request.method not in _WRITING:
        return READ
    return POST_METRICS if request.path.rstrip("/") in _OF_METRICS else WRITE


def _unauthorized(message: str) -> Problem:
    return Problem(401, "Unauthorized", message)


def _set_tenant(request: falcon.Request, tenant: str | None) -> None:
    request.context.tenant = checked = _checked(tenant)
    note_tenant(request.env, checked)


@lru_cache(maxsize=1024)
def _checked(tenant: str | None) -> str:
    faults = list(TENANT.faults(tenant or ""))
    if faults:
        raise unprocessable(f"the tenant {'; '.join(faults)}: correct tenant_id, or the header that names it")
    assert tenant is not None
    return tenant
