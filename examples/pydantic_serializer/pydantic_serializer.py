# SPDX-License-Identifier: Apache-2.0
"""Pydantic models as JSON: a typed serializer that another package adds to monasca-common."""

from typing import Any, ClassVar

import pydantic

from monasca_common.kafka import SerializationError, Serializer


class PydanticSerializer(Serializer):
    content_type: ClassVar[str] = "application/json"

    def __init__(self, *, type: Any) -> None:  # noqa: A002
        self._adapter = pydantic.TypeAdapter(type)

    def dumps(self, value: Any) -> bytes:
        try:
            return self._adapter.dump_json(value, warnings="error")
        except ValueError as error:
            raise SerializationError(f"not a value of the model: {type(error).__name__}") from None

    def loads(self, value: bytes) -> Any:
        try:
            return self._adapter.validate_json(value)
        except pydantic.ValidationError as error:
            # Omit the text of the error, because it quotes the input and many people read logs.
            raise SerializationError(f"not a value of the model: {error.error_count()} errors") from None
