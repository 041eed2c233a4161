#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds the source distribution of the current commit, and checks that PyPI can render the README. A build in the
# checkout would rewrite its metadata while tests read them.

set -euo pipefail
cd "$(dirname "$0")/.."

dist="$(mktemp -d)"
trap 'rm -rf "$dist"' EXIT

git clone --quiet . "$dist/checkout"
cd "$dist/checkout"
python -c 'import sys; from pbr import build; build.build_sdist(sys.argv[1])' "$dist" > "$dist/log" 2>&1 || { cat "$dist/log"; exit 1; }
twine check --strict "$dist"/*.tar.gz
