#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds the native Kafka client with AddressSanitizer in a copy of the package, and runs its unit tests and random
# calls there.
#
# Usage: bash tools/native_asan.sh [MINUTES of random calls, default 2]

set -euo pipefail
cd "$(dirname "$0")/.."

minutes="${1:-2}"
copy="$(mktemp -d)"
trap 'rm -rf "$copy"' EXIT
cp -r monasca_common setup.py setup.cfg pyproject.toml README.rst "$copy" # a test builds the extension
native=monasca_common/kafka/transport/native
headers="$(python -c 'import sysconfig; print(sysconfig.get_path("include"))')"
gcc -g -O1 -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer -Wall -Wextra \
    -Wno-missing-field-initializers -Wno-unused-parameter -Werror -shared -fPIC -DPy_LIMITED_API=0x030B0000 -I"$headers" \
    "$native"/*.c -o "$copy/$native/_librdkafka.abi3.so"

cd "$copy"
LD_PRELOAD="$(readlink -f "$(gcc -print-file-name=libasan.so)")"
# Do not check for leaks at exit: Python does not free everything, and a forked child must not free an inherited client.
# The random calls detect leaks by their memory usage.
export LD_PRELOAD PYTHONMALLOC=malloc ASAN_OPTIONS=detect_leaks=0:quarantine_size_mb=16
python -m unittest monasca_common.tests.unit.kafka.transport.test_native \
    monasca_common.tests.unit.kafka.transport.test_native_consumer
python -m monasca_common.tests.functional.kafka.native_calls --minutes "$minutes"
