# SPDX-License-Identifier: Apache-2.0
"""Speed and memory beside peers, on a real broker: ``python -m benchmarks --help``.

`runner` is that run; the other rooms hold what is measured: `messaging`, `storage`, `api`, `alarms`, `notifications`
and `pipeline`. A module there is one of three:

* a case of the run: it gets a `Job` in a process of its own, and prints `Figures`. A peer's case imports the peer and
  no monasca_common, because it may run in an environment that does not have it;
* a command of its own, for what takes long or stands alone: ``python -m benchmarks.alarms.rounds_growth --help``;
* what these share. What several rooms share is beside this file.
"""
