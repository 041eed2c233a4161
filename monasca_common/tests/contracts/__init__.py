# SPDX-License-Identifier: Apache-2.0
"""The contract of producers, consumers and processors: written once and run over every transport.

A transport's own test module binds it::

    class MyProducerTest(ProducerContract, MyCase): ...

where ``MyCase`` is a `testtools.TestCase` whose ``setUp`` sets ``self.cluster``, a `Cluster`. A cluster omits
unsupported features from its ``capabilities``: tests that need them still run, and must fail.
"""

from monasca_common.tests.contracts.cluster import PARTITIONS, Capability, Cluster, needs
from monasca_common.tests.contracts.consuming import ConsumerContract
from monasca_common.tests.contracts.groups import GroupContract
from monasca_common.tests.contracts.positions import PositionContract
from monasca_common.tests.contracts.processing import ProcessorContract
from monasca_common.tests.contracts.producing import ProducerContract
from monasca_common.tests.contracts.transactions import TransactionContract

__all__ = [
    "PARTITIONS",
    "Capability",
    "Cluster",
    "ConsumerContract",
    "GroupContract",
    "PositionContract",
    "ProcessorContract",
    "ProducerContract",
    "TransactionContract",
    "needs",
]
