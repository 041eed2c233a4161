# SPDX-License-Identifier: Apache-2.0
"""``monasca-common jars fetch``: fetch the jars of Kafka and of Spark's Kafka connector."""

import argparse
import importlib.metadata
import os
import shlex
from pathlib import Path

from monasca_common.cli.command import MonascaCommand
from monasca_common.devbroker.errors import InvalidCluster
from monasca_common.devbroker.jars import kafka_version
from monasca_common.jars import CACHE_VARIABLE, JarError, cache_folder, fetched, list_file, pinned_lists

_TESTED_SPARK = "4.0.0"


class JarsFetch(MonascaCommand):
    """Fetch the jars of Kafka (44 MB) and of Spark's Kafka connector (10 MB), and check them against pinned digests.

    Other commands fetch jars when they need them. For a machine without internet access, fetch the jars on
    another machine, copy the folder, and set MONASCA_COMMON_JARS to its path. The jars come from the URL in
    MONASCA_COMMON_MAVEN_REPOSITORY, otherwise from the mirror in Maven's settings.xml, otherwise from Maven Central.
    For example, fetch the connector for a machine with pyspark 4.0.0:
    monasca-common jars fetch --to /srv/jars spark-4.0.0
    """

    configured = False
    reported = (InvalidCluster, JarError)

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "lists",
            nargs="*",
            metavar="NAME",
            help=f"{', '.join(pinned_lists())} (default: the tested Kafka, and the connector of the installed pyspark)",
        )
        parser.add_argument(
            "--to",
            type=Path,
            metavar="DIR",
            help="the folder to write to (default: the folder that commands search)",
        )

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        names = parsed_args.lists or [f"kafka-{kafka_version()}", f"spark-{_spark_version()}"]
        unknown = [name for name in names if name not in pinned_lists()]
        if unknown:
            return self.report(f"{', '.join(unknown)} is not pinned: name one or more of {', '.join(pinned_lists())}")
        environ = dict(os.environ)
        if parsed_args.to is not None:
            environ[CACHE_VARIABLE] = str(parsed_args.to.absolute())
        for name in names:
            self.print(str(fetched(list_file(name), environ)))
        if parsed_args.to is not None:
            self.print(f"To use them: export {CACHE_VARIABLE}={shlex.quote(str(cache_folder(environ)))}")
        return 0


def _spark_version() -> str:
    """Return the version of the installed pyspark, or the tested version if pyspark is not installed."""
    try:
        return importlib.metadata.version("pyspark")
    except importlib.metadata.PackageNotFoundError:
        return _TESTED_SPARK
