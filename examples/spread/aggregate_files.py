# SPDX-License-Identifier: Apache-2.0
"""A custom job, which `monasca-common pipeline run aggregate_files` runs like the built-in ones."""

import time
from collections.abc import Mapping
from pathlib import Path

from oslo_config import cfg

from monasca_common.kafka import ConfigurationError
from monasca_common.pipeline import dataframes, load
from monasca_common.pipeline.jobs.job import Job, JobProgress, JobRequest, JobWatcher

OPTIONS = [
    cfg.StrOpt("source", help="Folder of the archive whose metrics are aggregated."),
    cfg.StrOpt("target", help="Folder to which the rows are written in Parquet. Must not exist."),
    cfg.StrOpt("pre_transform_specs", help="File of pre-transform rows. Default: the shipped rows."),
    cfg.StrOpt("transform_specs", help="File of transform rows. Default: the shipped rows."),
]


class AggregateFilesJob(Job):
    summary = "computes aggregates of all files of an archive, and writes them to a folder"
    ends = True

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._conf = conf
        conf.register_opts(OPTIONS, "pipeline_aggregate_files")
        options = conf.pipeline_aggregate_files
        if not (options.source and options.target):
            raise ConfigurationError("source and target in group [pipeline_aggregate_files] are required")
        self._source, self._target = options.source, options.target
        files = (options.pre_transform_specs, options.transform_specs)
        self._specifications = load(*(Path(file) if file else None for file in files))

    def facts(self) -> Mapping[str, object]:
        return {"reads": self._source, "writes": self._target}

    def run(self, request: JobRequest, watcher: JobWatcher) -> JobProgress:
        began = time.monotonic()
        spark = dataframes.session(self._conf, "aggregate_files")
        metrics = spark.read.parquet(self._source)
        partials = dataframes.partials(metrics, self._specifications)
        dataframes.rows(partials, self._specifications).write.parquet(self._target)
        progress = JobProgress(metrics.count(), 0, time.monotonic() - began)
        watcher.tell(progress)
        return progress
