# SPDX-License-Identifier: Apache-2.0
"""Write a software bill of materials (CycloneDX 1.6, JSON) of the production dependencies of this package.

cyclonedx-py lists this interpreter's environment, from which dependencies that only tests and checks need are removed.
The jars that pyspark contains and the jars of Spark's Kafka connector are listed with their pinned SHA-256 digests.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from jar_digests import PYSPARK_FILE
from licences import PACKAGE, RUNTIME_EXTRAS, needed
from packaging.utils import canonicalize_name

from monasca_common.jars import list_file, read_digests, read_list

_VERSION = "1.6"
_SPARK = "pyspark"

Bom = dict[str, Any]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="the file to write")
    parser.add_argument(
        "--no-validate", action="store_true", help="do not validate the result against CycloneDX's schema"
    )
    arguments = parser.parse_args()
    bom = of_production(environment())
    text = json.dumps(bom, indent=2) + "\n"
    validator = JsonStrictValidator(SchemaVersion.from_version(_VERSION))
    if not arguments.no_validate and (error := validator.validate_str(text)):
        print(f"the result is not valid CycloneDX {_VERSION}: {error}", file=sys.stderr)
        return 1
    arguments.file.write_text(text)
    print(f"{arguments.file}: {len(bom['components'])} components")
    return 0


def environment() -> Bom:
    """Return cyclonedx-py's bill of this interpreter's environment."""
    command = [sys.executable, "-m", "cyclonedx_py", "environment", "--sv", _VERSION, "--output-reproducible"]
    done = subprocess.run([*command, "--no-validate", sys.executable], stdout=subprocess.PIPE, check=True)
    bom: Bom = json.loads(done.stdout)
    return bom


def of_production(bom: Bom) -> Bom:
    """Return the bill of this package with its dependencies in production, and their jars."""
    names = needed(RUNTIME_EXTRAS).keys()
    every = {component["bom-ref"]: component for component in bom["components"]}
    root = every[f"{PACKAGE}=={version(PACKAGE)}"]
    kept = {ref: each for ref, each in every.items() if canonicalize_name(each["name"]) in names}
    depends = {each["ref"]: each.get("dependsOn", []) for each in bom["dependencies"]}
    jars = spark_jars() if _SPARK in names else {}
    for ref, each in kept.items():
        if each["name"] == _SPARK:
            depends[ref] = [*depends.get(ref, []), *jars]
    return {
        **bom,
        "metadata": {**bom["metadata"], "component": {**root, "type": "application"}},
        "components": [*kept.values(), *jars.values()],
        "dependencies": [
            {"ref": ref, "dependsOn": [each for each in depends.get(ref, []) if each in kept or each in jars]}
            for ref in (root["bom-ref"], *kept)
        ],
    }


def spark_jars() -> Mapping[str, Bom]:
    """Return the components, by reference, of the jars within pyspark and of its Kafka connector."""
    import pyspark

    if not PYSPARK_FILE.is_file():
        raise SystemExit(f"the jars of pyspark {pyspark.__version__} are not pinned: run tools/jar_digests.py spark")
    connector = read_list(list_file(f"spark-{pyspark.__version__}"))
    digests = read_digests(PYSPARK_FILE) | {jar.name: jar.sha256 for jar in connector}
    return {
        f"jar:{name}": {
            "bom-ref": f"jar:{name}",
            "type": "file",
            "name": name,
            "hashes": [{"alg": "SHA-256", "content": digest}],
        }
        for name, digest in sorted(digests.items())
    }


if __name__ == "__main__":
    sys.exit(main())
