# SPDX-License-Identifier: Apache-2.0
"""Check the installed jars against the pinned SHA-256 digests, or pin the digests of another version.

``check`` compares the jars of Kafka and of Spark's Kafka connector, which are fetched if they are missing, and all jars
within the installed pyspark. ``kafka VERSION``, ``spark`` and ``remote`` resolve the jars to pin with the Ivy in
pyspark: review their changes to the files before you commit them.
"""

import argparse
import hashlib
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pyspark

from monasca_common.devbroker.errors import DevBrokerError
from monasca_common.devbroker.jars import kafka_jars
from monasca_common.devbroker.java import find_java
from monasca_common.jars import foreign_jars, list_file, read_digests
from monasca_common.pipeline.errors import SparkUnavailable
from monasca_common.pipeline.spark.connector import connector_jars, kafka_connector
from monasca_common.tests.remote import hadoop

_VERSION = pyspark.__version__
PYSPARK_FILE = Path(__file__).with_name(f"pyspark-{_VERSION}.txt")
PYSPARK_JARS = Path(pyspark.__file__).parent / "jars"
# Kafka logs through slf4j but includes no binding. Without this jar, a failing broker logs nothing.
_LOGGING_JAR = "org.slf4j:slf4j-simple:1.7.36"
# Undeclared dependencies of the resource manager in Hadoop's test cluster; Java 8 contained the second one.
_FOR_HADOOP = ("org.bouncycastle:bcpkix-jdk18on:1.77", "org.glassfish.jaxb:jaxb-runtime:2.3.2")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("check", help="exit with status 1 if a jar differs from its digest")
    commands.add_parser("kafka", help="pin a Kafka version").add_argument("version")
    commands.add_parser("spark", help="pin the installed pyspark and its Kafka connector")
    commands.add_parser("remote", help="pin the jars of the tests with YARN")
    arguments = parser.parse_args()
    if arguments.command == "check":
        return check()
    if arguments.command == "kafka":
        kafka = f"org.apache.kafka:kafka_2.13:{arguments.version}"
        write(list_file(f"kafka-{arguments.version}"), resolved(kafka, _LOGGING_JAR))
    elif arguments.command == "remote":
        cluster = f"org.apache.hadoop:hadoop-client-minicluster:{hadoop.VERSION}"
        write(hadoop.CLUSTER_JARS, resolved(cluster, *_FOR_HADOOP))
    else:
        write(PYSPARK_FILE, {jar.name: digest_of(jar) for jar in PYSPARK_JARS.glob("*.jar")})
        shipped = read_digests(PYSPARK_FILE)
        connector = {
            name: digest
            for name, digest in resolved(kafka_connector()).items()
            if "{1}-{2}.jar".format(*name.split(":")) not in shipped
        }
        write(list_file(f"spark-{_VERSION}"), connector)
    return 0


def resolved(*coordinates: str) -> Mapping[str, str]:
    """Return the digests, by coordinates, of the jars that these coordinates need, from the repository configured for
    Ivy."""
    dependencies = "\n".join(
        '<dependency org="{}" name="{}" rev="{}" conf="default->master,runtime(default)"/>'.format(*each.split(":"))
        for each in coordinates
    )
    [ivy] = PYSPARK_JARS.glob("ivy-*.jar")
    with tempfile.TemporaryDirectory() as folder:
        module = Path(folder, "ivy.xml")
        module.write_text(
            '<ivy-module version="2.0"><info organisation="monasca" module="jars"/>'
            f'<configurations><conf name="default"/></configurations><dependencies>{dependencies}</dependencies>'
            "</ivy-module>"
        )
        command = [find_java(), "-jar", str(ivy), "-cache", f"{folder}/cache", "-ivy", str(module)]
        command += ["-confs", "default", "-types", "jar", "bundle"]
        command += ["-retrieve", f"{folder}/jars/[organisation]:[artifact]:[revision](:[classifier]).[ext]"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return {jar.stem: digest_of(jar) for jar in Path(folder, "jars").iterdir()}


def digest_of(jar: Path) -> str:
    return hashlib.sha256(jar.read_bytes()).hexdigest()


def check() -> int:
    faults = []
    try:
        kafka_jars()
        connector_jars()
    except (DevBrokerError, SparkUnavailable) as error:
        faults.append(str(error))
    if PYSPARK_FILE.is_file():
        faults += [f"pyspark {_VERSION}: {fault}" for fault in foreign_jars(installed(), read_digests(PYSPARK_FILE))]
    else:
        faults.append(f"{PYSPARK_FILE} is missing: run python tools/jar_digests.py spark")
    print("\n".join(faults), file=sys.stderr, end="\n" if faults else "")
    return 1 if faults else 0


def installed() -> list[Path]:
    return sorted(PYSPARK_JARS.glob("*.jar"))


def write(file: Path, digests: Mapping[str, str]) -> None:
    file.write_text("".join(f"{digest}  {name}\n" for name, digest in sorted(digests.items())))
    print(f"{file}: {len(digests)} jars")


if __name__ == "__main__":
    sys.exit(main())
