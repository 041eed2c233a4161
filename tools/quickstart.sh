#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The main job in one command: from HTTP to rows, exactly once, on this machine's own metrics.

set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=tools/environment.sh
source tools/environment.sh

for argument in "$@"; do
    case "$argument" in
        --help | -h)
            cat <<'EOF'
Usage: bash tools/quickstart.sh [--once] [-f text|json] [--seconds S] [--keep-data D] [--help]

Creates .venv when it is missing, installs the tested versions, starts a real Kafka, the API and the persister,
posts this machine's own metrics, loses answers and kills the persister on purpose, and ends with a table that
counts what was posted, stored, doubled and lost. A job on Spark then makes hourly averages, which are shown beside
their rows. Then an alarm is defined on a load that one process makes, and its history is shown beside what was
measured; a webhook on this machine is told of each change. Everything stays up until Ctrl-C.

  --once          end after the tables
  -f json         print one JSON object as the last line of standard output
  --seconds S     how long to post (default 20)
  --keep-data D   keep database, configuration and logs in the new folder D
  --help          this text

Exit status: 0 when nothing was lost and nothing doubled, the alarm went from OK to ALARM and back, and the webhook was
told. Needs Python 3.11 or newer and git; Java 17 or newer for a real Kafka and Spark.
EOF
            exit 0
            ;;
    esac
done

make_environment api,persister,dashboard,devbroker,notification,quickstart,spark >&2
exec monasca-common quickstart "${@/#--json/--format=json}" # scripts written for earlier versions say --json
