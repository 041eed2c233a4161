# SPDX-License-Identifier: Apache-2.0
"""Check the jars that are installed against the pinned SHA-256 digests, or pin those of another version.

``check`` compares Kafka's jars, fetched where they are missing, and all jars within the installed pyspark; those that
Spark fetches for its Kafka connector are compared when a session is opened. ``kafka VERSION`` and ``spark`` fetch what
they pin: look at the changes that they make to the files before you commit them.
"""

import argparse
import hashlib
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

import pyspark

from monasca_common.devbroker import fetch
from monasca_common.devbroker.digests import foreign_jars, read_digests
from monasca_common.devbroker.errors import DevBrokerError
from monasca_common.devbroker.jars import digest_file as kafka_file
from monasca_common.devbroker.jars import kafka_jars
from monasca_common.pipeline.settings import SparkSettings
from monasca_common.pipeline.spark import jars, session
from monasca_common.tests.remote import hadoop

_VERSION = pyspark.__version__
PYSPARK_FILE = Path(__file__).with_name(f"pyspark-{_VERSION}.txt")
PYSPARK_JARS = Path(pyspark.__file__).parent / "jars"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("check", help="exit with 1 if a jar is not the pinned one")
    commands.add_parser("kafka", help="pin a version of Kafka").add_argument("version")
    commands.add_parser("spark", help="pin the installed pyspark and its Kafka connector")
    commands.add_parser("remote", help="pin what is fetched for the tests with S3, HDFS and YARN")
    arguments = parser.parse_args()
    if arguments.command == "check":
        return check()
    if arguments.command == "kafka":
        with tempfile.TemporaryDirectory() as folder:
            fetch.fetch(Path(folder, "jars"), arguments.version)
            write(kafka_file(arguments.version), Path(folder, "jars").glob("*.jar"))
    elif arguments.command == "remote":
        write(hadoop.SPARK_DIGESTS, fetched(SparkSettings(master="local[1]", packages=hadoop.packages())))
        with tempfile.TemporaryDirectory() as folder:
            hadoop.fetch_cluster(Path(folder, "jars"))
            write(hadoop.CLUSTER_DIGESTS, Path(folder, "jars").glob("*.jar"))
    else:
        write(jars.digest_file(_VERSION), fetched(SparkSettings(master="local[1]")))
        write(PYSPARK_FILE, PYSPARK_JARS.glob("*.jar"))
    return 0


def fetched(settings: SparkSettings) -> list[Path]:
    """What Spark fetches for these settings."""
    options = session.configuration(settings)
    session._start_java(options)
    return session._fetched(options)


def check() -> int:
    faults = []
    try:
        kafka_jars()
    except DevBrokerError as error:
        faults.append(str(error))
    if PYSPARK_FILE.is_file():
        faults += [f"pyspark {_VERSION}: {fault}" for fault in foreign_jars(installed(), read_digests(PYSPARK_FILE))]
    else:
        faults.append(f"{PYSPARK_FILE} is missing: python tools/jar_digests.py spark")
    print("\n".join(faults), file=sys.stderr, end="\n" if faults else "")
    return 1 if faults else 0


def installed() -> list[Path]:
    return sorted(PYSPARK_JARS.glob("*.jar"))


def write(file: Path, found: Iterable[Path]) -> None:
    digests = {jar.name: hashlib.sha256(jar.read_bytes()).hexdigest() for jar in found}
    file.write_text("".join(f"{digest}  {name}\n" for name, digest in sorted(digests.items())))
    print(f"{file}: {len(digests)} jars")


if __name__ == "__main__":
    sys.exit(main())
