# SPDX-License-Identifier: Apache-2.0
"""Renders the text of notifications in a sandbox, from Jinja2 templates that an operator may replace."""

from __future__ import annotations

import datetime
import re

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from monasca_common.notification.errors import SendRefused
from monasca_common.notification.notification import Notification

SUBJECT, TEXT, HTML = "subject.txt", "text.txt", "body.html"

_MOST_SUBJECT, _MOST_TEXT = 250, 100_000  # characters; receivers refuse longer texts
_MOST_METRICS = 100
_MOST_CHANGES = 100
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")


class Texts:
    """Renders templates. Values are data: text in an alarm that looks like a template is shown unchanged."""

    def __init__(self, folder: str | None = None) -> None:
        own = jinja2.PackageLoader("monasca_common.notification", "templates")
        loaders: list[jinja2.BaseLoader] = [own] if folder is None else [jinja2.FileSystemLoader(folder), own]
        self._environment = ImmutableSandboxedEnvironment(
            loader=jinja2.ChoiceLoader(loaders),
            autoescape=jinja2.select_autoescape(["html"], default=False),
            trim_blocks=True,
            lstrip_blocks=True,
        )

    def subject(self, notification: Notification) -> str:
        """Return one line without control characters, for headers."""
        return _CONTROL.sub(" ", self._rendered(SUBJECT, notification)).strip()[:_MOST_SUBJECT]

    def text(self, notification: Notification) -> str:
        return self._rendered(TEXT, notification)[:_MOST_TEXT]

    def html(self, notification: Notification) -> str:
        return self._rendered(HTML, notification)[: 2 * _MOST_TEXT]

    def _rendered(self, name: str, notification: Notification) -> str:
        """Render a template, or the template of a group. Raises `SendRefused` if it is invalid or leaves the
        sandbox."""
        name, change = f"group_{name}" if notification.others else name, notification.change
        facts = {
            "id": notification.id,
            "change": change,
            "changes": notification.changes[:_MOST_CHANGES],
            "count": len(notification.changes),
            "metrics": change.metrics[:_MOST_METRICS],
            "more_metrics": change.metrics_total - len(change.metrics[:_MOST_METRICS]),
            "time": datetime.datetime.fromtimestamp(change.time_ms / 1000, datetime.UTC),
        }
        try:
            return self._environment.get_template(name).render(facts)
        except (jinja2.TemplateError, TypeError, ValueError, ArithmeticError, LookupError, AttributeError) as error:
            raise SendRefused(f"the template {name} cannot be rendered: {type(error).__name__}: {error}") from error
