# SPDX-License-Identifier: Apache-2.0
"""Fetches the pinned jars of Kafka and of Spark's Kafka connector once from a Maven repository, and caches them."""

from monasca_common.jars.cache import CACHE_VARIABLE, cache_folder, fetched
from monasca_common.jars.digests import (
    Digests,
    Jar,
    JarError,
    foreign_jars,
    list_file,
    pinned_lists,
    read_digests,
    read_list,
)
from monasca_common.jars.repository import REPOSITORY_VARIABLE

__all__ = [
    "CACHE_VARIABLE",
    "REPOSITORY_VARIABLE",
    "Digests",
    "Jar",
    "JarError",
    "cache_folder",
    "fetched",
    "foreign_jars",
    "list_file",
    "pinned_lists",
    "read_digests",
    "read_list",
]
