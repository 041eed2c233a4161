# SPDX-License-Identifier: Apache-2.0
"""Tables of declarations: ``alerts``, ``api-requests``, ``benchmark-cases``, ``durability-rules``,
``refused-properties`` and ``shipped-specifications``."""

from __future__ import annotations

import json
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml
from docutils import nodes
from docutils.parsers.rst import Directive
from docutils.statemachine import StringList
from sphinx.application import Sphinx

from monasca_common.kafka.config import guarded_options
from monasca_common.operations import durability

ROOT = Path(__file__).parents[2]
Row = tuple[str, ...]
_EXAMPLES = {
    "least": "2",
    "copies": "2",
    "most": "3",
    "brokers": "2",
    "group": "*G*",
    "truncated": "12",
    "deleted": "12",
}
_EXAMPLES |= {"seconds": "600"}


def alerts() -> Iterator[Row]:
    """Yield the name, severity and condition of each alert rule."""
    yield "Alert", "Severity", "Condition"
    for group in yaml.safe_load((ROOT / "deploy" / "prometheus" / "alerts.yml").read_text())["groups"]:
        for rule in group["rules"]:
            yield f"``{rule['alert']}``", rule["labels"]["severity"], rule["annotations"]["description"]


def benchmark_cases() -> Iterator[Row]:
    """Yield each section of the benchmark with its cases, and the ratios that it requires."""
    sys.path.insert(0, str(ROOT))
    from benchmarks import sections

    yield "Section", "Cases", "Required ratio (a goal is not checked)"
    for section in sections.SECTIONS:
        cases = [f"``{case.name}``: {case.title}" for case in section.cases]
        names = {case.name for case in section.cases}
        required = [
            f"``{each.case}`` {each.ratio} x ``{each.peer}``" + (" (goal)" if each.goal else "")
            for each in sections.REQUIRED
            if each.case in names
        ]
        yield f"``{section.name}``: {section.title}", "; ".join(cases), "; ".join(required)


def durability_rules() -> Iterator[Row]:
    """Yield the name, severity and text of each rule of ``durability check``."""
    yield "Rule", "Severity", "Finding, and what to do"
    for rule, text in durability._TEXTS.items():
        severity = "warning" if rule in durability._WARNINGS else "error"
        yield f"``{rule}``", severity, re.sub(r"{(\w+).*?}", lambda found: _EXAMPLES[found[1]], text)


def refused_properties() -> Iterator[Row]:
    """Yield the refused properties of librdkafka, grouped by reason."""
    yield "Refused", "Reason and replacement"
    names: dict[str, list[str]] = defaultdict(list)
    for refused in guarded_options.REFUSED.values():
        for name, reason in refused.items():
            if name not in names[reason]:
                names[reason].append(name)
    for reason, found in names.items():
        yield ", ".join(f"``{name}``" for name in found), f"{reason[0].upper()}{reason[1:]}."


def shipped_specifications() -> Iterator[Row]:
    """Yield each transform row: its input, output, metric id, and the columns that its rollup keeps."""
    from monasca_common import pipeline

    specifications = pipeline.load()
    yield "Input (further required fields)", "Output", "Metric id", "Rolled up by"
    for metric_id, transform in specifications.transforms.items():
        rows = [row for row in specifications.pre_transforms if metric_id in row.metric_ids]
        inputs = []
        for row in rows:
            required = ", ".join(f"``{field}``" for field in row.required if field != "creation_time")
            inputs.append(f"``{row.event_type}``" + (f" ({required})" if required else ""))
        by = ", ".join(f"``{column}``" for column in transform.rollup_by) or "nothing"
        yield ", ".join(inputs), f"``{transform.name}``", f"``{metric_id}``", by


def api_requests() -> Iterator[Row]:
    """Yield the requests that OpenAPI describes, with their parameters and the fields of their body."""
    document = json.loads((ROOT / "monasca_common" / "api" / "openapi.json").read_text())

    def resolved(found: dict[str, Any]) -> dict[str, Any]:
        while reference := found.get("$ref"):
            found = document
            for part in reference.removeprefix("#/").split("/"):
                found = found[part]
        return resolved(found["oneOf"][0]) if "oneOf" in found and "properties" not in found else found

    yield "Request", "Effect", "Parameters, or fields of the body"
    for path, operations in document["paths"].items():
        if path.startswith(("/v1.0/", "/v2.0/")):
            for method in ("get", "post", "put", "patch", "delete"):
                if operation := operations.get(method):
                    parameters = map(resolved, operation.get("parameters", ()))
                    names = [(each["name"], each.get("required")) for each in parameters]
                    if body := operation.get("requestBody"):
                        schema = resolved(body["content"]["application/json"]["schema"])
                        names += [(name, name in schema.get("required", ())) for name in schema["properties"]]
                    listed = ", ".join(f"**{name}**" if required else f"``{name}``" for name, required in names)
                    yield f"``{method.upper()} {path}``", operation["summary"], listed


def table(rows: Callable[[], Iterable[Row]]) -> type[Directive]:
    """Return a directive without arguments that shows the rows; the first row contains the titles."""

    class Table(Directive):
        def run(self) -> list[nodes.Node]:
            lines = [".. list-table::", "   :header-rows: 1", ""]
            for first, *others in rows():
                lines += [f"   * - {first}", *(f"     - {cell}" for cell in others)]
            holder = nodes.container()
            self.state.nested_parse(StringList(lines, source=__file__), self.content_offset, holder)
            return holder.children

    return Table


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("alerts", table(alerts))
    app.add_directive("api-requests", table(api_requests))
    app.add_directive("benchmark-cases", table(benchmark_cases))
    app.add_directive("durability-rules", table(durability_rules))
    app.add_directive("refused-properties", table(refused_properties))
    app.add_directive("shipped-specifications", table(shipped_specifications))
    return {"parallel_read_safe": True}
