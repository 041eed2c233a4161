# SPDX-License-Identifier: Apache-2.0
"""The texts for people, from templates of Jinja2 in a sandbox, which an operator may replace."""

from __future__ import annotations

import ctypes
import datetime
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any

import jinja2
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from monasca_common.notification.errors import SendRefused
from monasca_common.notification.notice import Notice

SUBJECT, TEXT, HTML = "subject.txt", "text.txt", "body.html"
GROUP_SUBJECT, GROUP_TEXT, GROUP_HTML = "group_subject.txt", "group_text.txt", "group_body.html"

_PACKAGE = "monasca_common.notification"
_MOST_SUBJECT, _MOST_TEXT = 250, 100_000  # characters; receivers refuse more, and people do not read it
_MOST_METRICS = 100
_MOST_CHANGES = 100
_MOST_RENDERED = 10_000_000  # characters
_MOST_SECONDS = 2.0  # for a template of the operator
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """A sandbox in which no text is repeated beyond what may be written."""

    intercepted_binops = frozenset(("*",))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        for text, times in ((left, right), (right, left)):
            is_repeated = isinstance(text, str | bytes | list | tuple) and isinstance(times, int)
            if is_repeated and len(text) * times > _MOST_RENDERED:
                raise TemplateTooLarge(f"it repeats a text to more than {_MOST_RENDERED} characters")
        return super().call_binop(context, operator, left, right)


class TemplateTooLarge(ValueError):
    """A template writes too much, or takes too long."""


class Texts:
    """What templates get is data: text in an alarm that looks like a template is shown as it is."""

    def __init__(self, folder: str | None = None) -> None:
        own = jinja2.PackageLoader(_PACKAGE, "templates")
        loaders: list[jinja2.BaseLoader] = [own] if folder is None else [jinja2.FileSystemLoader(folder), own]
        self._is_own = folder is None
        self._environment = BoundedEnvironment(
            loader=jinja2.ChoiceLoader(loaders),
            autoescape=jinja2.select_autoescape(["html"], default=False),
            trim_blocks=True,
            lstrip_blocks=True,
        )

    def subject(self, notice: Notice) -> str:
        """One line, without signs of control: headers hold it."""
        return _CONTROL.sub(" ", self._rendered(GROUP_SUBJECT if notice.others else SUBJECT, notice)).strip()[
            :_MOST_SUBJECT
        ]

    def text(self, notice: Notice) -> str:
        return self._rendered(GROUP_TEXT if notice.others else TEXT, notice)[:_MOST_TEXT]

    def html(self, notice: Notice) -> str:
        return self._rendered(GROUP_HTML if notice.others else HTML, notice)[: 2 * _MOST_TEXT]

    def _rendered(self, name: str, notice: Notice) -> str:
        """Raises `SendRefused` for a template that is broken, leaves the sandbox, or has no end."""
        change = notice.change
        facts = {
            "id": notice.id,
            "change": change,
            "changes": notice.changes[:_MOST_CHANGES],
            "count": len(notice.changes),
            "metrics": change.metrics[:_MOST_METRICS],
            "more_metrics": change.metrics_total - len(change.metrics[:_MOST_METRICS]),
            "time": datetime.datetime.fromtimestamp(change.time_ms / 1000, datetime.UTC),
        }
        try:
            template = self._environment.get_template(name)
            if self._is_own:
                return _joined(template.generate(facts))
            return _bounded(lambda: _joined(template.generate(facts)))
        except (jinja2.TemplateError, TypeError, ValueError, ArithmeticError, LookupError, AttributeError) as error:
            raise SendRefused(f"the template {name} cannot be rendered: {type(error).__name__}: {error}") from error


def _joined(pieces: Iterator[str]) -> str:
    """Raises `TemplateTooLarge`."""
    kept, size = [], 0
    for piece in pieces:
        size += len(piece)
        if size > _MOST_RENDERED:
            raise TemplateTooLarge(f"it writes more than {_MOST_RENDERED} characters")
        kept.append(piece)
    return "".join(kept)


def _bounded(render: Callable[[], str]) -> str:
    """Render on a thread of its own, which is ended after `_MOST_SECONDS`: a loop need not write anything."""
    results: list[str | BaseException] = []

    def run() -> None:
        try:
            results.append(render())
        except BaseException as error:
            results.append(error)

    thread = threading.Thread(target=run, name="template", daemon=True)
    thread.start()
    thread.join(_MOST_SECONDS)
    if not results:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(SystemExit))
        raise TemplateTooLarge(f"it takes longer than {_MOST_SECONDS} s")
    if isinstance(results[0], BaseException):
        raise results[0]
    return results[0]
