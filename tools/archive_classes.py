# SPDX-License-Identifier: Apache-2.0
"""Archive the loaded classes of Kafka and Spark, because a JVM with such an archive starts in half the time.

Print the JVM options that select the archives as shell commands: ``KAFKA_OPTS``, ``SPARK_SUBMIT_OPTS``. The tests start
more than a hundred JVMs. Existing archives for the same Java and the same jars are not replaced.
"""

import argparse
import hashlib
import json
import os
import shlex
import subprocess
import tempfile
from collections.abc import Callable
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
    parser.add_argument("folder", type=Path, help="the folder of the archives")
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
    """Return a digest of the versions on which an archive depends."""
    version = subprocess.run([find_java(), "-version"], capture_output=True, check=True).stderr
    found = [(str(jar), jar.stat()) for jar in sorted(jars.glob("*.jar"))]
    files = [(name, status.st_size, status.st_mtime_ns) for name, status in found]
    return hashlib.sha256(version + json.dumps(files).encode()).hexdigest()[:16]


def run_kafka() -> None:
    with tempfile.TemporaryDirectory() as folder, KafkaCluster(data_dir=Path(folder, "data")):
        pass  # with a data folder, the cluster stops in an orderly way, and the JVM then writes the archive


def run_spark() -> None:
    settings = SparkSettings(master="local[2]", shuffle_partitions=2)
    session = open_session(settings, "archive")
    gateway: Any = session.sparkContext._gateway
    frame = session.range(100).selectExpr("id", "cast(id AS string) AS text")
    frame.mapInArrow(lambda batches: batches, "id long, text string").groupBy("text").count().collect()
    close_session(session)
    gateway.proc.stdin.close()  # the JVM exits after its standard input is closed
    gateway.proc.wait()


if __name__ == "__main__":
    main()
