#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Sets everything up and runs every check and every test. The last line is "N passed, N failed, N skipped".

set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
    cat <<'EOF'
Usage: bash tools/run_tests.sh [--unit] [--help]

Creates .venv when it is missing, installs the tested versions, fetches Kafka's jars once, compares jars with
their pinned digests, runs ruff, mypy, import-linter, bandit, the linters of deploy/, reno, sphinx, the unit and
functional tests and our tempest plugin against the whole stack, and ends with one line:

    N passed, N failed, N skipped

A check counts as one. The exit status is 0 when nothing failed. With CI=true a skip is a failure.

The classes that take longest begin first; the times are kept in the user's cache, and the ten slowest are printed.
A test that failed is run once more by itself. If it then passes, it counts as passed, and stands above the last line as
flaky, with its first traceback: a bug that is to be found. More than two of them, more than one that failed by what it
claims, or one that tells of lost or doubled messages, fail the run.

  --unit   unit tests only: no checks, no Java, no broker
  --help   this text

Environment:
  CONCURRENCY       test processes at once (default 2; functional ones, half of which mostly wait, 4)
  OS_TEST_TIMEOUT   seconds after which a test is a failure (default 60; functional ones 300)
  PYTHON            the Python to make .venv with (default python3.11, else python3)

Needs Python 3.11 or newer, bash and git; the functional tests Java 17 or newer, influxd, Chromium, and
prometheus with promtool. As root on Debian it installs these where they are missing.
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
    command -v chromium >/dev/null || packages+=(chromium)
    command -v promtool >/dev/null || packages+=(prometheus)
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
given_timeout="${OS_TEST_TIMEOUT:-}"
export OS_LOG_CAPTURE=true OS_DEBUG=INFO OS_STDOUT_CAPTURE=true OS_STDERR_CAPTURE=true

# Runs the tests in one folder. What failed is run once more, by itself and with a record of its own, when nothing else
# runs.
results="$(mktemp -d)"
trap 'kill $(jobs -p) 2>/dev/null || true; rm -rf "$results"' EXIT

run_suite() {
    local name="$1" processes="$2" seconds="$3" again
    shift 3
    say "$name tests"
    export OS_TEST_TIMEOUT="${given_timeout:-$seconds}"
    run_processes "$name" "$name" --processes "${CONCURRENCY:-$processes}" "$@"
    again="$(python tools/count_tests.py "$results" --repeatable "$name")"
    if [[ -n "$again" ]]; then
        say "$name tests once more, by themselves"
        echo "$again" | tee "$results/$name.again"
        run_processes "$name" "$name-again" --processes 1 --only "$results/$name.again"
    fi
}

run_processes() {
    local folder="$1" name="$2" status=0
    shift 2
    python tools/run_suite.py "monasca_common/tests/$folder" "$results" "$name" "$@" 2> "$results/$name.stderr" || status=$?
    echo "$status" > "$results/$name.status"
}

# Keystone, Kafka and our services are started once, and our plugin runs against them; the public one has its own run
# (tox -e tempest). When nothing else runs: a test claims that an alarm comes in time.
run_tempest() {
    local again
    say "tempest tests"
    run_plugin tempest
    again="$(python tools/count_tests.py "$results" --repeatable tempest)"
    if [[ -n "$again" ]]; then
        say "tempest tests once more, by themselves"
        run_plugin tempest-again --concurrency 1 --test "$(paste -sd '|' <<< "$again")"
    fi
}

run_plugin() {
    local name="$1" status=0
    shift
    python tools/tempest_tests own --delay 5 --timeout 300 --stream "$results/$name.1.subunit" "$@" \
        2> "$results/$name.stderr" || status=$?
    echo "$status" > "$results/$name.status"
}

checks() {
    check "ruff check" ruff check .
    check "ruff format" ruff format --check .
    check "mypy" mypy
    check "import-linter" lint-imports
    check "bandit" bandit --quiet --recursive --configfile pyproject.toml monasca_common
    check "deployment" python tools/deployment.py
    check "reno" reno lint
    check "software bill of materials" python tools/sbom.py --no-validate "$results/sbom.json"
    check "sphinx" sphinx-build -W --keep-going -q -b html doc/source doc/build/html
    check "environments of published services" python -m monasca_common.tests.functional.services.environments
    echo "$passed_checks $failed_checks" > "$results/checks.count"
}

make_environment api,persister,dashboard,postgresql,services,spark,quickstart,devbroker,test,tempest,lint,docs
if [[ "$only_unit" == false ]]; then
    install_programs
    check "fetch jars and compare their digests" python tools/jar_digests.py check
    check "fetch what the oldest versions need" python tools/matrix.py --prepare oldest
    # They take one core: the unit tests run beside them.
    checks > "$results/checks.shown" 2>&1 &
    run_suite unit 2 60
    wait $! || true
    cat "$results/checks.shown"
    read -r passed_checks failed_checks < "$results/checks.count"
    archive_classes
    # Two with Spark on two cores, while the other two mostly wait.
    run_suite functional 4 300 --busy monasca_common.tests.functional.pipeline.
    run_tempest
else
    run_suite unit 2 60
fi
say "result"
python tools/count_tests.py "$results" --passed "$passed_checks" --failed "$failed_checks"
