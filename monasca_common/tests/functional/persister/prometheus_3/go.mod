module prometheus

go 1.26.7

tool github.com/prometheus/prometheus/cmd/prometheus

require github.com/prometheus/prometheus v0.316.0
