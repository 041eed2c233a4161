#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds the wheel to publish, for every Linux of this architecture with glibc 2.17 or newer (manylinux2014), and fails
# unless it has a usable native Kafka client. The compiler is zig's, which includes the symbols of that glibc.
#
# Usage: bash tools/wheel.sh [DIRECTORY for the wheel, default dist]

set -euo pipefail
cd "$(dirname "$0")/.."

directory="$(realpath -m "${1:-dist}")"
machine="$(uname -m)"
work="$(mktemp -d)"
# Files from another compiler that remain in build would become part of the wheel.
trap 'rm -rf "$work" build' EXIT

rm -rf build
CC="$(python -c 'import os, ziglang; print(os.path.dirname(ziglang.__file__))')/zig cc -target $machine-linux-gnu.2.17"
export CC LDSHARED="$CC -shared" MONASCA_COMMON_NATIVE=required
python -m pip wheel --quiet --no-deps --wheel-dir "$work/built" .
auditwheel repair --plat "manylinux2014_$machine" --wheel-dir "$work/repaired" "$work"/built/*.whl

python -m zipfile --extract "$work"/repaired/*.whl "$work/unpacked"
(cd "$work/unpacked" && PYTHONPATH="$PWD" python -P -m monasca_common.kafka.transport.native)
mkdir -p "$directory"
mv "$work"/repaired/*.whl "$directory"
