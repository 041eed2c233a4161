# SPDX-License-Identifier: Apache-2.0
"""Jira: an issue for each alarm, and a comment on it for each later change.

As in Monasca, the address of a method is ``https://jira.example.org/?project=KEY&component=NAME``. The account belongs
to the operator, so requests are sent only to the server that the operator named.
"""

from __future__ import annotations

import base64
import hashlib
import re
from typing import Any
from urllib.parse import parse_qs, urlsplit

import orjson

from monasca_common.models import json_text
from monasca_common.notification.addresses import endpoint
from monasca_common.notification.errors import AddressRefused, SendFailed, SendRefused
from monasca_common.notification.notification import Notification
from monasca_common.notification.notifiers.base import OwnNotifier
from monasca_common.notification.settings import JiraSettings, jira_settings

_API = "/rest/api/2"
_PROJECT = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,254}")
_MOST_COMPONENT = 255  # characters
_PLAIN_ID = re.compile(r"[A-Za-z0-9-]{1,64}")
_ISSUE_KEY = re.compile(r"[A-Za-z][A-Za-z0-9_]*-[0-9]+")
_GONE = 410
_MOST_TEXT = 30_000  # characters; Jira refuses 32,768


class JiraNotifier(OwnNotifier[JiraSettings]):
    read = staticmethod(jira_settings)

    def send(self, notification: Notification, address: str) -> str:
        project, component = self._target(address)
        alarm = f'labels = "{label(notification.change.alarm_id)}"'
        issue = self._search(f'project = "{project}" AND {alarm} ORDER BY created ASC')
        if issue is None:
            return f"created {self._create(notification, project, component)}"
        contains_id = f'(description ~ "{notification.id}" OR comment ~ "{notification.id}")'
        if self._search(f'project = "{project}" AND {alarm} AND {contains_id}') is not None:
            return f"{issue} already contains the notification"
        self._post(f"/issue/{issue}/comment", {"body": self._text(notification)})
        return f"commented on {issue}"

    def _create(self, notification: Notification, project: str, component: str | None) -> str:
        fields: dict[str, Any] = {
            "project": {"key": project},
            "issuetype": {"name": self._settings.issue_type},
            "summary": self._tools.texts.subject(notification),
            "description": self._text(notification),
            "labels": ["monasca", label(notification.change.alarm_id)],
        }
        if component is not None:
            fields["components"] = [{"name": component}]
        return _key(_document(self._post("/issue", {"fields": fields})))

    def _text(self, notification: Notification) -> str:
        """Return the text in a block without markup, with the id by which a repeated attempt is recognized."""
        text = self._tools.texts.text(notification).replace("{noformat}", "{ noformat }")[:_MOST_TEXT]
        return f"{{noformat}}\n{text}\nNotification {notification.id}\n{{noformat}}"

    def _search(self, jql: str) -> str | None:
        """Return the key of the first issue."""
        body = {"jql": jql, "fields": ["status"], "maxResults": 1}
        try:
            answer = self._post("/search", body)
        except SendFailed as error:
            if error.status != _GONE:
                raise
            answer = self._post("/search/jql", body)  # Jira Cloud has only this version of the request
        issues = _document(answer).get("issues")
        if not isinstance(issues, list):
            raise SendFailed("Jira's response to a search has no list of issues")
        return _key(issues[0]) if issues else None

    def _post(self, path: str, body: dict[str, Any]) -> bytes:
        url = f"{(self._settings.url or '').rstrip('/')}{_API}{path}"
        headers = {"Accept": "application/json", "Authorization": self._authorization()}
        http, timeout = self._tools.http, self._settings.timeout
        return http.post(url, json_text.write(body), headers, timeout, is_operators=True).body

    def _authorization(self) -> str:
        if self._settings.token:
            return f"Bearer {self._settings.token}"
        account = f"{self._settings.user}:{self._settings.password or ''}"
        return f"Basic {base64.b64encode(account.encode()).decode()}"

    def _target(self, address: str) -> tuple[str, str | None]:
        """Return the project and the component in the address. Raises `SendRefused` for an address on a server other
        than the operator's."""
        if not self._settings.url or not (self._settings.token or self._settings.user):
            raise SendRefused("Jira is not configured: set url, and token or user, in [jira_notifier]")
        asked, own = endpoint(address), endpoint(self._settings.url)
        asked_path, own_path = (each.target.partition("?")[0].rstrip("/") for each in (asked, own))
        if (asked.shown, asked_path) != (own.shown, own_path):
            raise AddressRefused(f"the address is not on {own.shown}, the url in [jira_notifier]: use this server")
        query = parse_qs(urlsplit(address).query)
        project, component = query.get("project", [""])[0], query.get("component", [None])[0]
        if _PROJECT.fullmatch(project) is None:
            raise AddressRefused("the address names no project: write https://host/?project=KEY")
        if component is not None and len(component) > _MOST_COMPONENT:
            raise AddressRefused(f"the component in the address has more than {_MOST_COMPONENT} characters")
        return project, component


def label(alarm_id: str) -> str:
    """Return the label of an alarm's issue, without characters that end a string in Jira's query language."""
    if _PLAIN_ID.fullmatch(alarm_id) is None:
        alarm_id = hashlib.blake2b(alarm_id.encode(), digest_size=16).hexdigest()
    return f"monasca-{alarm_id}"


def _document(answer: bytes) -> dict[str, Any]:
    try:
        document: Any = orjson.loads(answer)
    except orjson.JSONDecodeError as error:
        raise SendFailed("Jira's response is not JSON: correct url in [jira_notifier]") from error
    return document if isinstance(document, dict) else {}


def _key(issue: Any) -> str:
    key = issue.get("key") if isinstance(issue, dict) else None
    if not isinstance(key, str) or _ISSUE_KEY.fullmatch(key) is None:
        raise SendFailed("Jira's response has no issue key")
    return key
