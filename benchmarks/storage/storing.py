# SPDX-License-Identifier: Apache-2.0
"""Measurements into PostgreSQL: by psycopg alone and by the writer; new ones, some repeated, all repeated."""

from __future__ import annotations

from benchmarks.job import Figures, Job, main
from benchmarks.storage.writers import batches, figures, first_ones, psycopg_copy, psycopg_merge, writer


def run(job: Job) -> Figures:
    kind, _, bare = job.case.partition("-")
    given = batches(job.messages, repeats=kind == "merge")
    before = given if kind == "replay" else first_ones(given)
    psycopg_alone = psycopg_copy if kind == "store" else psycopg_merge
    store = psycopg_alone(job) if bare else writer(job)
    return figures(job, store, given, before=before)


if __name__ == "__main__":
    main(run)
