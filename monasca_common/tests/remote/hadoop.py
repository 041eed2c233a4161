# SPDX-License-Identifier: Apache-2.0
"""What the tests need of Hadoop, of exactly the version whose client pyspark ships; each jar is compared with the
digest that is pinned for it (``tools/jar_digests.py remote`` writes the files)."""

import fcntl
import os
import shutil
import subprocess
from pathlib import Path

import pyspark

from monasca_common.devbroker.digests import foreign_jars, read_digests
from monasca_common.devbroker.java import find_java
from monasca_common.pipeline.spark.session import kafka_connector

_HERE = Path(__file__).parent
_PYSPARK_JARS = Path(pyspark.__file__).parent / "jars"
#: What Spark fetches: 570 MB.
SPARK_DIGESTS = _HERE / f"jars-{pyspark.__version__}.txt"
#: A cluster in one process: 100 MB.
CLUSTER_DIGESTS = _HERE / f"cluster-{pyspark.__version__}.txt"
# What Hadoop's resource manager needs and its cluster for tests does not name; the second was a part of Java 8.
_BESIDE = (("org.bouncycastle", "bcpkix-jdk18on", "1.77"), ("org.glassfish.jaxb", "jaxb-runtime", "2.3.2"))


def hadoop_version() -> str:
    [jar] = _PYSPARK_JARS.glob("hadoop-client-api-*.jar")
    return jar.stem.removeprefix("hadoop-client-api-")


def packages() -> tuple[str, ...]:
    """Kafka's connector, and Hadoop's own client of S3, which plain readers use and no job of ours."""
    return kafka_connector(), f"org.apache.hadoop:hadoop-aws:{hadoop_version()}"


def cluster_jars() -> Path:
    """The folder with the jars of the cluster, fetched once. Raises `RuntimeError` if one is not the pinned one."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "monasca-common")
    cache.mkdir(parents=True, exist_ok=True)
    folder = cache / f"hadoop-cluster-{hadoop_version()}"
    with (cache / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            partial = folder.with_name(f"{folder.name}.partial")
            shutil.rmtree(partial, ignore_errors=True)
            fetch_cluster(partial)
            partial.rename(folder)
    pinned = read_digests(CLUSTER_DIGESTS)
    jars = sorted(folder.glob("*.jar"))
    faults = [*foreign_jars(jars, pinned), *(pinned.keys() - {jar.name for jar in jars})]
    if faults:
        raise RuntimeError(f"{folder} has not the jars that are pinned: {'; '.join(faults)}; remove it")
    return folder


def fetch_cluster(folder: Path) -> None:
    [ivy] = _PYSPARK_JARS.glob("ivy-*.jar")
    for dependency in (("org.apache.hadoop", "hadoop-client-minicluster", hadoop_version()), *_BESIDE):
        command = [find_java().path, "-jar", str(ivy), "-dependency", *dependency, "-confs", "default"]
        command += ["-retrieve", f"{folder}/[artifact]-[revision].[ext]", "-types", "jar", "bundle"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
