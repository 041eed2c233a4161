# SPDX-License-Identifier: Apache-2.0
import fixtures
from oslotest import base

from monasca_common.kafka.errors import ConfigurationError
from monasca_common.kafka.plugins import load_hooks
from monasca_common.kafka.processor.hooks import Hook, Hooks
from monasca_common.tests.unit.kafka.processor.processor_case import ONCE, ProcessorCase


class Recorder(Hook):
    """Records which of its methods are called."""

    def __init__(self, name="", log=None):
        self.name = name
        self.log = [] if log is None else log

    def __getattribute__(self, attribute):
        if attribute.startswith(("before_", "after_")):
            self.log.append(self.name + attribute)
        return super().__getattribute__(attribute)


class Broken(Hook):
    def before_handle(self, part, attempt):
        raise RuntimeError("a broken hook")

    def before_dead_letter(self, message, error):
        raise RuntimeError("a broken hook")

    def before_commit(self, offsets):
        raise RuntimeError("a broken hook")


class HooksTest(base.BaseTestCase):
    def test_hooks_are_nested(self):
        log: list[str] = []
        hooks = Hooks([Recorder("outer.", log), Recorder("inner.", log)])
        hooks.call("before_commit", {})
        hooks.call("after_commit", {})
        self.assertEqual(
            ["outer.before_commit", "inner.before_commit", "inner.after_commit", "outer.after_commit"], log
        )

    def test_an_unknown_name_is_refused(self):
        error = self.assertRaises(ConfigurationError, load_hooks, ["no-such-hook"])
        self.assertIn("no-such-hook", str(error))

    def test_no_names_are_no_hooks(self):
        self.assertEqual((), load_hooks([]))


class ProcessingTest(ProcessorCase):
    def refuse(self, part):
        raise ValueError("bad")

    def test_a_hook_observes_each_step_of_a_message(self):
        self.fill(b"bad")
        recorder = Recorder()
        self.start(self.refuse, retry=ONCE, hooks=[recorder])
        self.until(lambda: self.committed() == 1 and "after_commit" in recorder.log)
        way = [event for event in recorder.log if event != "after_poll"]
        self.assertEqual(
            [
                "before_handle",
                "after_handle",
                "before_dead_letter",
                "after_dead_letter",
                "before_commit",
                "after_commit",
            ],
            way,
        )

    # Rule 21
    def test_a_hook_that_raises_is_logged_and_changes_no_outcome(self):
        log = self.useFixture(fixtures.FakeLogger("monasca_common.kafka.processor.hooks", format="%(message)s"))
        self.fill(b"bad")
        self.start(self.refuse, retry=ONCE, hooks=[Broken()])
        self.until(lambda: self.committed() == 1)
        self.assertEqual([b"bad"], self.values("in.dlq"))
        for event in ("before_handle", "before_dead_letter", "before_commit"):
            self.assertIn(f"hook Broken raised in {event}; the processor continues", log.output)
