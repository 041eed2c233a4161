# SPDX-License-Identifier: Apache-2.0
"""The jars of Hadoop that the tests need, of exactly the version whose client pyspark ships; each jar is compared with
its pinned digest (``tools/jar_digests.py remote`` writes the files)."""

from pathlib import Path

import pyspark

from monasca_common.jars import fetched

_HERE = Path(__file__).parent
_PYSPARK_JARS = Path(pyspark.__file__).parent / "jars"
#: What Spark fetches: 570 MB.
SPARK_DIGESTS = _HERE / f"jars-{pyspark.__version__}.txt"


def hadoop_version() -> str:
    [jar] = _PYSPARK_JARS.glob("hadoop-client-api-*.jar")
    return jar.stem.removeprefix("hadoop-client-api-")


def packages() -> tuple[str, ...]:
    """Hadoop's own client of S3, which plain readers use and no job of ours."""
    return (f"org.apache.hadoop:hadoop-aws:{hadoop_version()}",)


def cluster_list() -> Path:
    """The list of the jars of a cluster in one process: 100 MB."""
    return _HERE / f"hadoop-cluster-{hadoop_version()}.txt"


def cluster_jars() -> Path:
    """The folder with the jars of the cluster, fetched once."""
    return fetched(cluster_list())
