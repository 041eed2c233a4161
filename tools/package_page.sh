#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds the source distribution, and checks that PyPI can render the README.

set -euo pipefail
cd "$(dirname "$0")/.."

dist="$(mktemp -d)"
trap 'rm -rf "$dist"' EXIT

python -c 'import sys; from pbr import build; build.build_sdist(sys.argv[1])' "$dist" > "$dist/log" 2>&1 || { cat "$dist/log"; exit 1; }
twine check --strict "$dist"/*.tar.gz
