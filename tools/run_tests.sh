#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Sets everything up and runs every check and every test. The last line is "N passed, N failed, N skipped".

set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
    cat <<'EOF'
Usage: bash tools/run_tests.sh [--unit] [--help]

Creates .venv when it is missing, installs the tested versions, fetches Kafka's jars once, runs ruff, mypy,
import-linter, bandit, reno, sphinx and the unit and functional tests, and ends with one line:

    N passed, N failed, N skipped

A check counts as one. The exit status is 0 when nothing failed. With CI=true a skip is a failure.

  --unit   unit tests only: no checks, no Java, no broker
  --help   this text

Environment:
  CONCURRENCY       test processes at once (default 2; functional ones, which mostly wait, 3)
  OS_TEST_TIMEOUT   seconds after which a test is a failure (default 60; functional ones 300)
  PYTHON            the Python to make .venv with (default python3.11, else python3)

Needs Python 3.11 or newer, bash and git; the functional tests Java 17 or newer, and influxd. As root on Debian it
installs these two where they are missing.
EOF
}

only_unit=false
for argument in "$@"; do
    case "$argument" in
        --unit) only_unit=true ;;
        --help | -h) usage; exit 0 ;;
        *) echo "run_tests.sh: unknown argument '$argument'; --help names the known ones" >&2; exit 2 ;;
    esac
done

# shellcheck source=tools/environment.sh
source tools/environment.sh

# What is not installed, and cannot be, is a skip with its reason later.
install_programs() {
    local packages=()
    command -v java >/dev/null || [[ -n "${JAVA_HOME:-}" ]] || packages+=(openjdk-17-jre-headless)
    command -v influxd >/dev/null || packages+=(influxdb)
    if [[ ${#packages[@]} -gt 0 && "$(id -u)" == 0 ]] && command -v apt-get >/dev/null; then
        say "installing ${packages[*]}"
        export DEBIAN_FRONTEND=noninteractive
        { apt-get update -qq && apt-get install -y -qq --no-install-recommends "${packages[@]}"; } >/dev/null ||
            echo "not installed: ${packages[*]}" >&2
    fi
}

# Half of the time that a JVM takes to start; without Java, or if it fails, they start as they are.
archive_classes() {
    local options
    say "archive the classes of Kafka and Spark"
    if options="$(python tools/archive_classes.py .venv/classes 2> "$results/classes.log")"; then
        eval "$options"
    else
        tail -n 1 "$results/classes.log" >&2
    fi
}

failed_checks=0
passed_checks=0

check() {
    local name="$1"
    shift
    say "$name"
    if "$@"; then
        passed_checks=$((passed_checks + 1))
    else
        failed_checks=$((failed_checks + 1))
        echo "FAILED: $name" >&2
    fi
}

# What a test logs and prints is shown if it fails, and what its process wrote to stderr if any did.
export OS_LOG_CAPTURE=true OS_DEBUG=INFO OS_STDOUT_CAPTURE=true OS_STDERR_CAPTURE=true

# Runs the tests in one folder, with a record of its own: another run in this checkout may be under way.
results="$(mktemp -d)"
trap 'rm -rf "$results"' EXIT

run_suite() {
    local name="$1" processes="$2" seconds="$3" status=0
    say "$name tests"
    mkdir "$results/$name"
    OS_TEST_TIMEOUT="${OS_TEST_TIMEOUT:-$seconds}" OS_TEST_PATH="./monasca_common/tests/$name" \
        stestr --repo-url "$results/$name" run --concurrency "${CONCURRENCY:-$processes}" --suppress-attachments \
        2> "$results/$name.stderr" || status=$?
    stestr --repo-url "$results/$name" last --subunit > "$results/$name.subunit" 2>/dev/null || true
    echo "$status" > "$results/$name.status"
}

set_version
make_environment api,persister,postgresql,spark,quickstart,devbroker,test,lint,docs
if [[ "$only_unit" == false ]]; then
    install_programs
    check "fetch Kafka's jars" python -c 'from monasca_common.devbroker.jars import kafka_jars; print(kafka_jars())'
    check "ruff check" ruff check .
    check "ruff format" ruff format --check .
    check "mypy" mypy
    check "import-linter" lint-imports
    check "bandit" bandit --quiet --recursive --configfile pyproject.toml monasca_common
    check "reno" reno lint
    check "sphinx" sphinx-build -W --keep-going -q -b html doc/source doc/build/html
fi
run_suite unit 2 60
if [[ "$only_unit" == false ]]; then
    archive_classes
    run_suite functional 3 300
fi
say "result"
python tools/count_tests.py "$results" --passed "$passed_checks" --failed "$failed_checks"
