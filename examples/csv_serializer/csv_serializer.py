# SPDX-License-Identifier: Apache-2.0
"""Rows as comma-separated values: a serializer that another package adds to monasca-common."""

import csv
import io
from typing import Any, ClassVar

from monasca_common.kafka import SerializationError, Serializer


class CsvSerializer(Serializer):
    content_type: ClassVar[str] = "text/csv"

    def dumps(self, value: Any) -> bytes:
        if not isinstance(value, list) or not all(isinstance(field, str) for field in value):
            raise SerializationError(f"csv writes a list of str, but got {type(value).__name__}")
        text = io.StringIO()
        csv.writer(text, lineterminator="").writerow(value)
        return text.getvalue().encode()

    def loads(self, value: bytes) -> list[str]:
        try:
            rows = list(csv.reader([value.decode()], strict=True))
        except (UnicodeDecodeError, csv.Error) as error:
            # The error names the position and the rule, but never the payload, because many people read logs.
            raise SerializationError(f"the value is not a CSV row: {type(error).__name__}") from None
        return rows[0] if rows else []
