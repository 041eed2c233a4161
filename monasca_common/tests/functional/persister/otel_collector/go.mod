module collector

go 1.25.0

require (
	github.com/open-telemetry/opentelemetry-collector-contrib/exporter/kafkaexporter v0.165.1
	go.opentelemetry.io/collector/exporter/otlphttpexporter v0.165.0
	go.opentelemetry.io/collector/otelcol v0.165.0
	go.opentelemetry.io/collector/receiver/otlpreceiver v0.165.0
)
