# SPDX-License-Identifier: Apache-2.0
"""The ten examples of the page about the sink run, each with its mapping, its messages and its rows."""

import json
import re
from pathlib import Path

import monasca_common
from monasca_common.kafka.message import MESSAGE_ID_HEADER
from monasca_common.tests.unit.sink.sink_case import SinkTestCase, batch, message

PAGE = Path(monasca_common.__file__).parent.parent / "doc/source/user/sink.rst"
_BLOCK = re.compile(r"^\.\. code-block:: (\w+)\n\n((?:   .*\n|\n)+)", re.MULTILINE)


def examples():
    """Yield the title, mapping, messages and rows of each example."""
    for section in PAGE.read_text().split("\nExample ")[1:]:
        blocks = {kind: re.sub(r"^   ", "", text, flags=re.MULTILINE).strip() for kind, text in _BLOCK.findall(section)}
        yield section.partition("\n")[0], blocks["toml"], blocks["json"], blocks["text"]


def read(line):
    given = json.loads(line)
    headers = [(name, text.encode()) for name, text in given.get("headers", {}).items()]
    if "id" in given:
        headers.append((MESSAGE_ID_HEADER, given["id"].encode()))
    key, value = given.get("key"), given["value"]
    return message(
        None if value is None else json.dumps(value).encode(),
        None if key is None else key.encode() if isinstance(key, str) else json.dumps(key).encode(),
        headers,
    )


class ExamplesTest(SinkTestCase):
    def test_each_example_stores_its_rows(self):
        found = list(examples())
        self.assertEqual(10, len(found))
        for number, (title, mapping, messages, rows) in enumerate(found):
            self.use_database(f"{number}.sqlite")
            self.open(mapping)
            topic = re.search(r'topic = "(.*)"', mapping)[1]
            letters = self.process(batch(topic, [read(line) for line in messages.splitlines()]))
            stored = [f"dead letter of offset {offset}: {reason}" for offset, reason in sorted(letters.items())]
            for name in re.findall(r"^\[(\w+)\]$", mapping, re.MULTILINE):
                found_rows = sorted(self.select(f'SELECT * FROM "{name}"'), key=str)
                stored += [f"{name}: " + " | ".join(map(_shown, row)) for row in found_rows]
            self.assertEqual(rows.splitlines(), stored, title)


def _shown(value):
    return value.decode() if isinstance(value, bytes) else "NULL" if value is None else str(value)
