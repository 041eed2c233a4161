#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Installs everything, and runs the checks and tests. The last line is "N passed, N failed, N skipped".

set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
    cat <<'EOF'
Usage: bash tools/run_tests.sh [--all | --unit] [--help]

Creates .venv if it is missing, installs the tested versions, fetches Kafka's jars once, compares jars with their
pinned digests, runs ruff, mypy, import-linter, bandit, the linters of deploy/, the checks of wording, commit subjects
and spelling, reno, twine, sphinx, the unit tests, the functional tests that are not periodic, and two tests of our
tempest plugin. The last line is

    N passed, N failed, N skipped

Each check counts as one. The exit status is 0 if nothing failed. If CI=true, a skipped test is a failure.

Each test needs a result. A class in which a test failed runs once more. A test that then passes is flaky: it counts as
passed, and its first traceback is printed above the last line. More than two flaky tests fail the run; lost or
duplicated messages always do. The time limit is 60 minutes, or 150 with --all: everything unfinished then has failed.

  --all    everything: also the classes marked @periodic, our whole tempest plugin, 10 minutes each of the endurance
           test and of random calls under AddressSanitizer, the environments of the published services and of the oldest
           versions, and the software bill of materials
  --unit   unit tests only: no checks, no Java, no broker
  --help   print this text

Environment:
  OS_TEST_TIMEOUT   seconds after which a test fails (default 60; functional tests 300)
  PYTHON            the Python that creates .venv (default python3.11, else python3)
  XDG_CACHE_HOME    the cache (default ~/.cache); monasca-common/stestr holds the times that distribute the tests

Requires Python 3.11 or newer with its headers, a C compiler, bash and git; the functional tests need Java 17 or newer,
influxd, Chromium, nginx, prometheus with promtool, and with --all faketime. As root on Debian, it installs the missing
ones.
EOF
}

mode=gate
for argument in "$@"; do
    case "$argument" in
        --all | --unit) mode="${argument#--}" ;;
        --help | -h) usage; exit 0 ;;
        *) echo "run_tests.sh: unknown argument '$argument'; --help lists the arguments" >&2; exit 2 ;;
    esac
done

allowed_seconds=3600
[[ "$mode" != all ]] || allowed_seconds=9000

# remaining [MOST]: prints the number of seconds that a step may take.
remaining() {
    local left=$((allowed_seconds - SECONDS)) most="${1:-$allowed_seconds}"
    left=$((left < most ? left : most))
    echo $((left > 0 ? left : 1))
}

# limited SECONDS COMMAND: runs the command in this process group, so that Ctrl-C reaches it.
limited() { timeout --foreground --kill-after=30 "$@"; }

# shellcheck source=tools/environment.sh
source tools/environment.sh

# install_packages NAME...: installs Debian packages, if it runs as root.
install_packages() {
    if [[ $# -gt 0 && "$(id -u)" == 0 ]] && command -v apt-get >/dev/null; then
        say "installing $*"
        export DEBIAN_FRONTEND=noninteractive
        { limited "$(remaining 300)" apt-get update -qq &&
            limited "$(remaining 900)" apt-get install -y -qq --no-install-recommends "$@"; } >/dev/null ||
            echo "not installed: $*" >&2
    fi
}

# Installs a compiler for the native Kafka client, without which a unit test fails.
install_compiler() {
    local python="${PYTHON:-$(command -v python3.11 || command -v python3 || true)}" header
    header="$("${python:-false}" -c 'import sysconfig; print(sysconfig.get_path("include"))' || true)/Python.h"
    command -v "${CC:-cc}" >/dev/null && [[ -f "$header" ]] || install_packages gcc libc6-dev python3-dev
}

# Tests whose program cannot be installed are skipped later, with the reason.
install_programs() {
    local packages=()
    command -v java >/dev/null || [[ -n "${JAVA_HOME:-}" ]] || packages+=(openjdk-17-jre-headless)
    command -v influxd >/dev/null || packages+=(influxdb)
    command -v chromium >/dev/null || packages+=(chromium)
    command -v promtool >/dev/null || packages+=(prometheus)
    command -v nginx >/dev/null || packages+=(nginx-light)
    [[ "$mode" != all ]] || command -v faketime >/dev/null || packages+=(faketime)
    install_packages "${packages[@]}"
    [[ " ${packages[*]} " != *" nginx-light "* ]] || service nginx stop >/dev/null 2>&1 || true  # its package starts it
}

# Class archives halve the start time of a JVM. Without Java, or if this step fails, JVMs start without them.
archive_classes() {
    local options
    say "archive the classes of Kafka and Spark"
    if options="$(limited "$(remaining 600)" python tools/archive_classes.py .venv/classes 2> "$results/classes.log")"; then
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
    if limited "$(remaining)" "$@"; then
        passed_checks=$((passed_checks + 1))
    else
        failed_checks=$((failed_checks + 1))
        echo "FAILED: $name" >&2
    fi
}

# For a failed test, the output contains its log and its prints; for a failed suite, the stderr of its processes.
[[ "$mode" != all ]] || export MONASCA_COMMON_TEST_CASES=100
given_timeout="${OS_TEST_TIMEOUT:-}"
export OS_LOG_CAPTURE=true OS_DEBUG=INFO OS_STDOUT_CAPTURE=true OS_STDERR_CAPTURE=true

results="$(mktemp -d)"
chmod 711 "$results" # the user postgres starts the endurance test's database in a folder below

finish() {
    kill -- $(jobs -p | sed 's/^/-/') 2>/dev/null || true
    [[ "$(tail -n 1 "$results/line" 2>/dev/null)" == *" skipped" ]] || echo "0 passed, 1 failed, 0 skipped"
    umount "$results/endurance.run/disk" 2>/dev/null || true
    rm -rf "$results"
}
trap finish EXIT

run_suite() {
    local name="$1" seconds="$2"
    shift 2
    say "$name tests"
    export OS_TEST_TIMEOUT="${given_timeout:-$seconds}"
    [[ "$mode" != all ]] || set -- "$@" --all
    python tools/suite.py "monasca_common/tests/$name" "$results" "$name" --limit "$(remaining)" "$@" || true
}

# Starts Keystone, Kafka and our services, and runs our plugin; `tox -e tempest` runs the public one as well. Nothing
# else runs at the same time, because a test requires an alarm within a given time.
run_tempest() {
    local tests=()
    [[ "$mode" == all ]] || tests=(--test 'TestReadBack.test_a_measurement|TestLifeCycle.test_last')
    say "tempest tests"
    limited "$(remaining)" python tools/tempest_tests/run_tempest.py own --results "$results" "${tests[@]}" \
        2>> "$results/tempest-own.stderr" || true
}

checks() {
    check "ruff check" ruff check .
    check "ruff format" ruff format --check .
    check "mypy" mypy
    check "import-linter" lint-imports
    check "bandit" bandit --quiet --recursive --configfile pyproject.toml monasca_common
    check "deployment" python tools/deployment.py
    check "english" python tools/english.py
    check "commit subjects" python tools/english.py --commits
    check "codespell" codespell
    check "reno" reno lint
    check "twine" bash tools/package_page.sh
    check "sphinx" sphinx-build -W --keep-going -q -b html doc/source doc/build/html
    if [[ "$mode" == all ]]; then
        check "software bill of materials" python tools/sbom.py --no-validate "$results/sbom.json"
        check "environments of published services" python -m monasca_common.tests.functional.services.environments
    fi
    echo "$passed_checks $failed_checks" > "$results/checks.count"
}

suites=(unit)
install_compiler
make_environment api,avro,json-schema,protobuf,persister,dashboard,postgresql,services,spark,quickstart,devbroker,test,tempest,lint,docs
if [[ "$mode" == unit ]]; then
    run_suite unit 60
else
    suites+=(functional tempest-own)
    install_programs
    check "fetch jars and compare their digests" python tools/jar_digests.py check
    [[ "$mode" == gate ]] || check "fetch the oldest Kafka" monasca-common jars fetch kafka-3.9.2
    # These tests use one core, so the unit tests run at the same time. `finish` ends the process group of the checks.
    set -m
    checks > "$results/checks.shown" 2>&1 < /dev/null &
    set +m
    run_suite unit 60
    wait $! || true
    cat "$results/checks.shown"
    read -r passed_checks failed_checks < "$results/checks.count" || { passed_checks=0; failed_checks=1; }
    archive_classes
    run_suite functional 300 --worker-file tools/workers.yaml --concurrency 2
    run_tempest
    if [[ "$mode" == all ]]; then
        check "native client under AddressSanitizer" bash tools/native_asan.sh 10
        check "endurance" python tools/endurance.py --minutes 10 --report "$results/endurance.md"
    fi
fi
say "result"
python tools/verdict.py "$results" "${suites[@]}" --passed "$passed_checks" --failed "$failed_checks" |
    tee "$results/line"
