# SPDX-License-Identifier: Apache-2.0
"""Check the files in ``deploy/`` with a linter for each format: hadolint, kubernetes-validate, compose-spec.

``tox -e units`` checks the units of systemd, on a machine that has systemd. The unit test ``test_deployment`` compares
the files with the services: commands, options, ports, paths, times.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import compose_spec
import yaml

DEPLOY = Path(__file__).parents[1] / "deploy"


def main() -> int:
    return max(images(), manifests(), compose())


def images() -> int:
    return _run("hadolint", DEPLOY / "Containerfile")


def manifests() -> int:
    files = [path for path in sorted((DEPLOY / "kubernetes").glob("*.yaml")) if path.name != "kustomization.yaml"]
    return _run("kubernetes-validate", "--strict", "--quiet", *files)


def compose() -> int:
    path = DEPLOY / "compose" / "compose.yaml"
    merged = yaml.safe_dump(yaml.safe_load(path.read_text()))  # compose_spec does not support merge keys
    try:
        compose_spec.PyCompose.from_yaml(merged).validate()
    except ValueError as error:
        print(f"{path}: {error}", file=sys.stderr)
        return 1
    return 0


def _run(program: str, *arguments: str | Path) -> int:
    try:
        return subprocess.run([program, *arguments], check=False).returncode
    except FileNotFoundError:
        print(f"{program} is not installed: pip install -c upper-constraints.txt '.[lint]'", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
