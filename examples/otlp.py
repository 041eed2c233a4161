# SPDX-License-Identifier: Apache-2.0
"""Send a metric and a log with OpenTelemetry's SDK: ``python otlp.py http://127.0.0.1:8070 ID SECRET``, with the id and
the secret of a Keystone application credential."""

import base64
import sys

from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource


def main(url: str, user: str, secret: str) -> None:
    resource = Resource({"service.name": "shop"})
    headers = {"Authorization": "Basic " + base64.b64encode(f"{user}:{secret}".encode()).decode()}
    # The exporters repeat a request for this time, which is longer than a restart of the API.
    metrics = OTLPMetricExporter(f"{url}/v1/metrics", headers=headers, timeout=60)
    meters = MeterProvider([PeriodicExportingMetricReader(metrics)], resource)
    logs = LoggerProvider(resource)
    logs.add_log_record_processor(
        BatchLogRecordProcessor(OTLPLogExporter(f"{url}/v1/logs", headers=headers, timeout=60))
    )

    meters.get_meter("shop").create_counter("orders").add(3, {"region": "north"})
    record = LogRecord(body="three orders", severity_number=SeverityNumber.INFO, severity_text="INFO")
    logs.get_logger("shop").emit(record)

    meters.shutdown()  # sends pending data
    logs.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
