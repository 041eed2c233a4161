# SPDX-License-Identifier: Apache-2.0
"""Hadoop's jars for the tests, of the version whose client pyspark includes."""

from pathlib import Path

import pyspark

[_JAR] = (Path(pyspark.__file__).parent / "jars").glob("hadoop-client-api-*.jar")
VERSION = _JAR.stem.removeprefix("hadoop-client-api-")
#: The list of the jars of a cluster in one process (100 MB). ``tools/jar_digests.py remote`` writes it.
CLUSTER_JARS = Path(__file__).with_name(f"hadoop-cluster-{VERSION}.txt")
#: The coordinates of Hadoop's own S3 client (570 MB), which only common readers use.
S3_CLIENT = f"org.apache.hadoop:hadoop-aws:{VERSION}"
