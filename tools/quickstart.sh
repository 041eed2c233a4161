#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs the quickstart: stores this machine's metrics from HTTP to rows, exactly once.

set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=tools/environment.sh
source tools/environment.sh

for argument in "$@"; do
    case "$argument" in
        --help | -h)
            cat <<'EOF'
Usage: bash tools/quickstart.sh [--once] [--from prometheus | --formats] [-f text|json]
       [--seconds S] [--keep-data D] [--help]

Creates a missing .venv, installs the tested versions, starts a real Kafka, the API and the persister, posts this
machine's own metrics, freezes Kafka and kills the persister on purpose, and prints a table of posted, stored, duplicate
and lost rows. Then a job on Spark computes hourly averages, generated load changes an alarm, and a webhook on this
machine receives each change. All services run until Ctrl-C.

  --once          exit after the tables
  --from prometheus
                  start a Prometheus that writes to the API, instead of posting, and print the counts of its samples and
                  of their rows; without Spark and the alarm
  --formats       also start a schema registry, write Avro, and store the topic with a sink
  -f json         print one JSON object as the last line of standard output
  --seconds S     seconds to post metrics (default 20)
  --keep-data D   keep database, configuration and logs in the new folder D
  --help          this text

Exit status: 0 if no row was lost or duplicate, the alarm went from OK to ALARM and back, and the webhook received each
change; with --from prometheus, if each sample is a row. Requires Python 3.11 or newer, git and Java 17 or newer.
EOF
            exit 0
            ;;
    esac
done

make_environment api,persister,dashboard,devbroker,notification,quickstart,spark,avro >&2
exec monasca-common quickstart "${@/#--json/--format=json}" # scripts for earlier versions pass --json
