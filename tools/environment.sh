# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
#
# The scripts in this folder source this file in the root of the checkout. It creates .venv with the tested versions.

say() { printf '\n== %s\n' "$*"; }

# make_environment EXTRAS: installs these extras, except those that an earlier call has installed.
make_environment() {
    local extras="$1"
    if [[ ! -x .venv/bin/python || ! -x .venv/bin/pip ]]; then  # without pip, an earlier attempt failed half-way
        local python
        python="${PYTHON:-$(command -v python3.11 || command -v python3 || true)}"
        if [[ -z "$python" ]] || ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
            echo "$(basename "$0"): Python 3.11 or newer is needed: install it, or name it in PYTHON" >&2
            exit 1
        fi
        say "creating .venv with $python"
        "$python" -m venv .venv
    fi
    local versions extra missing=false
    versions="$(cat upper-constraints.txt requirements.txt setup.cfg setup.py pyproject.toml \
        monasca_common/kafka/transport/native/*.[ch] | sha256sum)"
    grep -qsF "$versions" .venv/installed || : > .venv/installed  # built from other sources, so not current
    for extra in ${extras//,/ }; do
        grep -qsxF "$extra $versions" .venv/installed || missing=true
    done
    if [[ "$missing" == true ]]; then
        say "installing the tested versions"
        rm -f monasca_common/kafka/transport/native/*.so  # an old extension must not remain if the build fails
        .venv/bin/python -m pip install --quiet --disable-pip-version-check -c upper-constraints.txt -e ".[$extras]"
        for extra in ${extras//,/ }; do
            echo "$extra $versions" >> .venv/installed
        done
    fi
    export PATH="$PWD/.venv/bin:$PATH"
}
