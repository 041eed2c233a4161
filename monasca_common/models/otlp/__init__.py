# SPDX-License-Identifier: Apache-2.0
"""OTLP: converts requests of OpenTelemetry's protocol to the metrics and logs of envelopes. Needs the extra
``[otlp]``."""
