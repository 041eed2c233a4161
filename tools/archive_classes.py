# SPDX-License-Identifier: Apache-2.0
"""Archive the classes of Kafka and of Spark, as Java loads them: a JVM that finds them starts in half the time.

Prints the options that a JVM finds them by, as lines for a shell: ``KAFKA_OPTS``, ``SPARK_SUBMIT_OPTS``. The tests
start more than a hundred JVMs. What is archived already, of the same Java and the same classes, is left alone.
"""

import argparse
import hashlib
import os
import shlex
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyspark

from monasca_common.devbroker import KafkaCluster
from monasca_common.devbroker.jars import kafka_jars
from monasca_common.devbroker.java import find_java
from monasca_common.pipeline.settings import SparkSettings
from monasca_common.pipeline.spark.session import close_session, open_session

_QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path, help="where the archives are kept")
    folder = parser.parse_args().folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    spark_jars = Path(pyspark.__file__).parent / "jars"
    archive(folder, "KAFKA_OPTS", kafka_jars(), run_kafka)
    archive(folder, "SPARK_SUBMIT_OPTS", spark_jars, run_spark)


def archive(folder: Path, variable: str, jars: Path, run: Callable[[], None]) -> None:
    file = folder / f"{fingerprint(jars)}.jsa"
    if not file.exists():
        unfinished = folder / f"{os.getpid()}.unfinished"
        os.environ[variable] = f"{_QUIET} -XX:ArchiveClassesAtExit={unfinished}"
        run()
        unfinished.rename(file)
    print(f"export {variable}={shlex.quote(f'{_QUIET} -XX:SharedArchiveFile={file}')}")


def fingerprint(jars: Path) -> str:
    """Of what makes an archive useless when it changes."""
    version = subprocess.run([find_java(), "-version"], capture_output=True, check=True).stderr
    return hashlib.sha256(version + "\n".join(described(jars)).encode()).hexdigest()[:16]


def described(jars: Path) -> Iterator[str]:
    for jar in sorted(jars.glob("*.jar")):
        found = jar.stat()
        yield f"{jar} {found.st_size} {found.st_mtime_ns}"


def run_kafka() -> None:
    with tempfile.TemporaryDirectory() as folder, KafkaCluster(data_dir=Path(folder, "data")):
        pass  # with a folder of its own it stops in order, which is when a JVM archives


def run_spark() -> None:
    settings = SparkSettings(master="local[2]", shuffle_partitions=2)
    session = open_session(settings, "archive")
    gateway: Any = session.sparkContext._gateway
    frame = session.range(100).selectExpr("id", "cast(id AS string) AS text")
    frame.mapInArrow(lambda batches: batches, "id long, text string").groupBy("text").count().collect()
    close_session(session)
    gateway.proc.stdin.close()  # it ends when the other end is closed
    gateway.proc.wait()


if __name__ == "__main__":
    main()
