# SPDX-License-Identifier: Apache-2.0
"""OTLP: from requests of OpenTelemetry's protocol to the metrics and logs of envelopes. Needs the extra ``[otlp]``."""
