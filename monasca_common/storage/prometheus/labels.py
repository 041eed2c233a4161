# SPDX-License-Identifier: Apache-2.0
"""The labels of series in Prometheus.

A receiver may drop a series with an invalid name without an error (Prometheus 2.42 only logs it), so invalid names are
escaped like UTF-8 names in Prometheus: the prefix ``U__``, then ``__`` for ``_`` and a hexadecimal code point for any
other special character. ``cpu.idle_perc`` becomes ``U__cpu_2e_idle__perc``. Different names have different results.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from monasca_common.models.series import Series

NAME = "__name__"
_TENANT, _REGION = "tenant", "region"
#: Dimensions whose names equal those of our labels, perhaps with prefixes. One more prefix keeps all labels distinct.
_LIKE_OURS = re.compile(rf"(exported_)*({NAME}|{_TENANT}|{_REGION})")
_METRIC = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_NOT_IN_METRIC = re.compile(r"\A[0-9]|[^a-zA-Z0-9:]")
_NOT_IN_LABEL = re.compile(r"\A[0-9]|[^a-zA-Z0-9]")
_ESCAPED = "U__"


def labels_of(series: Series, *, with_tenant: bool) -> dict[str, str]:
    """Return the labels, sorted by name, without empty ones, because Prometheus treats these as missing."""
    labels = {NAME: _converted(series.name, _METRIC, _NOT_IN_METRIC), _REGION: series.region}
    if with_tenant:
        labels[_TENANT] = series.tenant
    for key, value in series.dimensions.items():
        name = f"exported_{key}" if _LIKE_OURS.fullmatch(key) else _converted(key, _LABEL, _NOT_IN_LABEL)
        labels[name] = value
    return {name: labels[name] for name in sorted(labels) if labels[name]}


def _converted(name: str, valid: re.Pattern[str], others: re.Pattern[str]) -> str:
    if valid.fullmatch(name) and not name.startswith(_ESCAPED):
        return name
    return _ESCAPED + others.sub(_escape, name)


def _escape(found: re.Match[str]) -> str:
    return "__" if found[0] == "_" else f"_{ord(found[0]):x}_"


def selector(labels: Mapping[str, str]) -> str:
    """Return the PromQL selector of all series that have these labels; they may have others as well."""
    return "{" + ",".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in labels.items()) + "}"
