# SPDX-License-Identifier: Apache-2.0
"""JSON with a schema id: checks values as `json` does, and against the schema with jsonschema."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, ClassVar
from urllib.parse import urljoin

import referencing
from jsonschema import SchemaError, ValidationError, validators
from jsonschema.protocols import Validator
from referencing.jsonschema import DRAFT202012

from monasca_common.kafka.errors import ConfigurationError, SerializationError
from monasca_common.kafka.serialization.framed import FramedSerializer
from monasca_common.kafka.serialization.json import PLAIN
from monasca_common.kafka.serialization.registry import Names, SchemaKey


class JsonSchemaSerializer(FramedSerializer[Validator]):
    """A serializer of plain JSON values with a schema id. Values are checked when they are written and read."""

    content_type: ClassVar[str] = "application/json; framing=schema-id"
    schema_type: ClassVar[str] = "JSON"

    def parse(self, text: str, names: Names) -> Validator:
        try:
            schema = json.loads(text)
            validator = validators.validator_for(schema)
            validator.check_schema(schema)
            contents = [(urljoin(validator.ID_OF(schema), name), json.loads(each)) for name, each in names]
            # This registry has no function that retrieves other addresses, so no reference causes a request.
            registry: Any = referencing.Registry().with_contents(contents, default_specification=DRAFT202012)
        except (SchemaError, ValueError, TypeError, AttributeError, RecursionError) as error:
            raise SerializationError(f"not a JSON Schema: {type(error).__name__}") from None
        return validator(schema, registry=registry)

    def record_name(self, schema: Validator) -> str:
        title = schema.schema.get("title") if isinstance(schema.schema, dict) else None
        if not title:
            raise ConfigurationError("the JSON Schema has no title: add one, or use subject_name_strategy=topic")
        return str(title)

    def encode(self, value: Any, schema: Validator) -> bytes:
        text = PLAIN.dumps(value)
        _check(value, schema, "its JSON Schema")
        return text

    def decode(self, value: bytes, key: SchemaKey, name: str) -> Any:
        schema = self.registry.get(key)
        plain = PLAIN.loads(value)
        _check(plain, schema, f"the JSON Schema {key}")
        return plain


def _unique_items(validator: Any, wanted: Any, items: Any, _: Any) -> Iterator[ValidationError]:
    """Check a rule for which jsonschema compares every two items if any of them is an object."""
    if wanted and validator.is_type(items, "array"):
        plain = json.loads(json.dumps(items), parse_float=_number)
        if len({json.dumps(item, sort_keys=True) for item in plain}) < len(items):
            yield ValidationError("items are repeated")


# For the whole process, because jsonschema checks a referenced schema with the validator of its own draft.
for _draft in [each for name, each in vars(validators).items() if name.startswith("Draft")]:
    _draft.VALIDATORS["uniqueItems"] = _unique_items


def _number(text: str) -> float:
    number = float(text)
    return int(number) if number.is_integer() else number  # 1.0 equals 1


def _check(plain: Any, schema: Validator, name: str) -> None:
    """Raise `SerializationError` with the path and rule of the first error, because its text would quote the value."""
    try:
        error = next(schema.iter_errors(plain), None)
        rule = "" if error is None else f"{error.json_path} breaks the rule {error.validator}"
    except Exception as failed:
        rule = type(failed).__name__  # for example, because a reference is missing in the registry
    if rule:
        raise SerializationError(f"not a value of {name}: {rule}")
