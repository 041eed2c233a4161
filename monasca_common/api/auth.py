# SPDX-License-Identifier: Apache-2.0
"""Who calls, for which tenant, and whether they may.

Tokens are keystonemiddleware's, rules are oslo.policy's. The tenant is the token's project; a body never names one.
Everything is decided before routing, and so before a body is looked at.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

import falcon
import msgspec
from oslo_config import cfg
from oslo_policy import policy

from monasca_common.api.limits import RETRY_AFTER_SECONDS, Environ, StartResponse, WsgiApp
from monasca_common.api.options import ApiSettings
from monasca_common.api.problems import Problem, unprocessable
from monasca_common.models.limits import TENANT

LOG = logging.getLogger(__name__)

PUBLIC_PATHS = frozenset({"/", "", "/v2.0", "/v2.0/", "/healthcheck"})

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
        READ, "role:monasca-user or role:monasca-read-only-user or role:admin", description="Read whatever there is."
    ),
    policy.RuleDefault(
        DELEGATE, "role:monitoring-delegate or role:admin", description="Act for the tenant that ?tenant_id= names."
    ),
]

_WRITING = frozenset({"POST", "PUT", "PATCH", "DELETE"})


def list_rules() -> list[policy.RuleDefault]:
    """For oslo.policy's generator of sample files."""
    return list(_RULES)


class NoAuthentication:
    """Falcon middleware: everybody may do everything, as whichever tenant they name."""

    def __init__(self, settings: ApiSettings) -> None:
        self._tenant = settings.noauth_tenant
        LOG.warning(
            "[api] auth_strategy = noauth: nobody is authenticated, everybody may read and write every tenant's data; "
            "use it for trying out only, on an address that nobody else reaches"
        )

    def process_request(self, request: falcon.Request, _response: falcon.Response) -> None:
        tenant = request.env.get("HTTP_X_PROJECT_ID") or self._tenant
        if request.query_string:
            tenant = request.get_param("tenant_id") or tenant
        request.context.tenant = _checked(tenant)


class Authorization:
    """Falcon middleware behind `authenticated`: sets ``request.context.tenant``, or raises `Problem` (401, 403)."""

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._enforcer = policy.Enforcer(conf)
        self._enforcer.register_defaults(_RULES)
        self._enforcer.load_rules()  # what is wrong with a file of rules is told at the start

    def process_request(self, request: falcon.Request, _response: falcon.Response) -> None:
        if request.path in PUBLIC_PATHS:
            return
        environ = request.env
        if environ.get("HTTP_X_IDENTITY_STATUS") != "Confirmed":
            raise _unauthorized("the request has no valid token: send one in X-Auth-Token")
        tenant = environ.get("HTTP_X_PROJECT_ID")
        if not tenant:
            raise _unauthorized("the token belongs to no project: ask for one that is scoped to a project")
        caller = {
            "roles": [role.strip() for role in environ.get("HTTP_X_ROLES", "").split(",")],
            "project_id": tenant,
            "user_id": environ.get("HTTP_X_USER_ID"),
        }
        rule = _rule_of(request)
        if not self._allows(rule, caller):
            raise _unauthorized(f"none of the token's roles may do this ({rule}): ask for a token with one that may")
        if request.has_param("tenant_id"):
            if not self._allows(DELEGATE, caller):
                raise Problem(
                    403, "Forbidden", "none of the token's roles may act for another tenant: leave tenant_id out"
                )
            tenant = request.get_param("tenant_id")
        request.context.tenant = _checked(tenant)

    def _allows(self, rule: str, caller: Mapping[str, Any]) -> bool:
        target = {"project_id": caller["project_id"]}
        return bool(self._enforcer.authorize(rule, target, dict(caller), do_raise=False))


def authenticated(app: WsgiApp, conf: cfg.ConfigOpts) -> WsgiApp:
    """The app behind keystonemiddleware, which validates tokens as ``[keystone_authtoken]`` says, answers 401 without
    a valid one, and strips the headers that pretend to come from it. Public paths go past it."""
    import webob
    import webob.exc
    from keystoneauth1 import exceptions as keystone_exceptions
    from keystonemiddleware import auth_token

    class Tokens(auth_token.AuthProtocol):  # type: ignore[misc]  # it has no annotations
        def process_request(self, request: Any) -> Any:
            try:
                return super().process_request(request)
            except (webob.exc.HTTPServiceUnavailable, keystone_exceptions.ClientException) as error:
                LOG.warning("A token cannot be validated: %s", error)
                headers = {"Retry-After": str(RETRY_AFTER_SECONDS)}
                kind = {"content_type": "application/json", "charset": "UTF-8"}
                return webob.Response(status=503, body=_KEYSTONE_AWAY, headers=headers, **kind)

    # Were the decision delayed, so that public paths need no way of their own, a Keystone that is away would make
    # every token a bad one.
    behind = Tokens(app, {"oslo_config_config": conf, "delay_auth_decision": False})

    def route(environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        public = environ.get("PATH_INFO") in PUBLIC_PATHS
        return app(environ, start_response) if public else behind(environ, start_response)

    return route


_KEYSTONE_AWAY = msgspec.json.encode(
    {
        "error": {
            "code": 503,
            "title": "Service Unavailable",
            "message": "the identity service does not answer, so the token cannot be validated; nothing of the "
            "request was taken: send it again later",
        }
    }
)


def _rule_of(request: falcon.Request) -> str:
    if request.method not in _WRITING:
        return READ
    return POST_METRICS if request.path.rstrip("/") == "/v2.0/metrics" else WRITE


def _unauthorized(message: str) -> Problem:
    return Problem(401, "Unauthorized", message)


@lru_cache(maxsize=1024)
def _checked(tenant: str | None) -> str:
    faults = list(TENANT.faults(tenant or ""))
    if faults:
        raise unprocessable(f"the tenant {'; '.join(faults)}: correct tenant_id")
    assert tenant is not None
    return tenant
