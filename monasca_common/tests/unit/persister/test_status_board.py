# SPDX-License-Identifier: Apache-2.0
import os

from oslotest import base

from monasca_common.persister.status import MemberState, Status
from monasca_common.persister.status_board import StatusBoard
from monasca_common.storage.base import Kind

ONE, TWO = Status("metrics-0", Kind.METRICS), Status("logs-0", Kind.LOGS)
TOLD = Status("logs-0", Kind.LOGS, 7, MemberState.FAILED, "why", 1, 2, 3, {"log/0": 4}, stored=5, write_seconds=0.5)


class StatusBoardTest(base.BaseTestCase):
    def test_what_is_written_is_read_whole(self):
        board = StatusBoard([ONE, TWO])
        board.write(TOLD)
        self.assertEqual([ONE, TOLD], board.statuses())

    def test_a_child_writes_and_its_parent_reads(self):
        board = StatusBoard([ONE, TWO])
        pid = os.fork()
        if pid == 0:
            board.write(TOLD)
            os._exit(0)
        os.waitpid(pid, 0)
        self.assertEqual(TOLD, board.read("logs-0"))

    def test_a_half_written_notice_leaves_the_one_before(self):
        board = StatusBoard([ONE, TWO])
        board.write(TOLD)
        board.read("logs-0")
        board._memory[board._memory.find(b"why")] ^= 1
        self.assertEqual(TOLD, board.read("logs-0"))

    def test_of_more_partitions_than_fit_the_sum_is_told(self):
        board = StatusBoard([ONE])
        board.write(Status("metrics-0", Kind.METRICS, lag={f"a-long-name/{number}": 1 for number in range(5000)}))
        self.assertEqual({"all": 5000}, board.read("metrics-0").lag)
