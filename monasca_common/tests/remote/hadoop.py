# SPDX-License-Identifier: Apache-2.0
"""Hadoop's jars for the tests, of the version whose client pyspark includes."""

from pathlib import Path

import pyspark

from monasca_common.jars import fetched

_HERE = Path(__file__).parent
_PYSPARK_JARS = Path(pyspark.__file__).parent / "jars"


def hadoop_version() -> str:
    [jar] = _PYSPARK_JARS.glob("hadoop-client-api-*.jar")
    return jar.stem.removeprefix("hadoop-client-api-")


def cluster_list() -> Path:
    """Return the list of the jars of a cluster in one process (100 MB). ``tools/jar_digests.py remote`` writes it."""
    return _HERE / f"hadoop-cluster-{hadoop_version()}.txt"


def cluster_jars() -> Path:
    """Return the folder with the jars of the cluster, which are fetched once."""
    return fetched(cluster_list())


#: The coordinates of Hadoop's own S3 client (570 MB), which only common readers use.
S3_CLIENT = f"org.apache.hadoop:hadoop-aws:{hadoop_version()}"
