#!/usr/bin/env python3
"""Tests to_wandb with a module that stands in for wandb and notes what it is given."""

import contextlib
import importlib.machinery
import importlib.util
import io
import json
import os
import pathlib
import sys
import tempfile
import types
import unittest
from unittest import mock

PROGRAM = str(pathlib.Path(__file__).resolve().parent / "to_wandb")


def load():
    loader = importlib.machinery.SourceFileLoader("to_wandb", PROGRAM)
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("to_wandb", loader))
    loader.exec_module(module)
    return module


class ToWandbTest(unittest.TestCase):

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR"))) / "my run"
        self.folder.mkdir()
        self.metrics = self.folder / "metrics.jsonl"
        self.inits, self.logged, self.finished = [], [], 0

    def finish(self):
        self.finished += 1

    def send(self, *arguments, during=()):
        """Runs the program. Each wait of --follow calls the next function of `during`; after the last, Ctrl-C."""
        run = types.SimpleNamespace(log=lambda values, step: self.logged.append((step, values)), finish=self.finish)
        fake = types.SimpleNamespace(init=lambda **settings: self.inits.append(settings) or run)
        steps = [*during]

        def sleep(_):
            if not steps:
                raise KeyboardInterrupt
            steps.pop(0)()

        module = load()
        out = io.StringIO()
        with mock.patch.dict(sys.modules, {"wandb": fake, "trackio": fake}), contextlib.redirect_stdout(out), \
                mock.patch.object(sys, "argv", ["to_wandb", str(self.folder), *arguments]), \
                mock.patch.object(module.time, "sleep", sleep):
            module.main()
        return out.getvalue()

    def append(self, *records):
        self.append_text("".join(json.dumps(record) + "\n" for record in records))

    def append_text(self, text):
        with open(self.metrics, "a") as file:
            file.write(text)

    def replace(self, *records):
        """As run:resume does: another file gets the name."""
        new = self.folder / "metrics.new"
        new.write_text("".join(json.dumps(record) + "\n" for record in records))
        new.replace(self.metrics)

    def test_steps_and_events_are_sent_with_their_names_and_the_configuration(self):
        (self.folder / "config.json").write_text('{"lr": 0.1}')
        self.append({"step": 0, "loss": 2.5}, {"step": 0, "event": "validation", "loss": 3})

        self.send("--project", "mine")

        self.assertEqual(self.logged, [(0, {"loss": 2.5}), (0, {"validation/loss": 3})])
        self.assertEqual(self.inits, [
            {"project": "mine", "name": "my run", "id": "my-run", "resume": "allow", "config": {"lr": 0.1}}])
        self.assertEqual(self.finished, 1)

    def test_trackio_gets_no_id(self):
        self.append({"step": 0, "loss": 1})

        self.send("--to", "trackio")

        self.assertEqual(self.inits, [{"project": "lockstep", "name": "my run", "resume": "allow", "config": {}}])

    def test_a_line_is_sent_once_it_is_complete(self):
        self.metrics.write_text('{"step": 0, "loss": 1}\n{"step": 1, "lo')
        rest = lambda: self.append_text('ss": 0.5}\n')

        self.send("--follow", during=[lambda: self.assertEqual(len(self.logged), 1), rest])

        self.assertEqual(self.logged, [(0, {"loss": 1}), (1, {"loss": 0.5})])

    def test_a_second_start_goes_on_where_the_first_ended(self):
        self.append({"step": 0, "loss": 1})
        self.send()
        self.append({"step": 0, "event": "validation", "loss": 2}, {"step": 1, "loss": 0.5})

        self.send()

        self.assertEqual(self.logged, [(0, {"loss": 1}), (0, {"validation/loss": 2}), (1, {"loss": 0.5})])

    def test_a_resumed_run_repeats_no_step(self):
        self.append({"step": 0, "loss": 3}, {"step": 1, "loss": 2}, {"step": 2, "loss": 1})
        resume = lambda: self.replace({"step": 0, "loss": 3})
        again = lambda: self.append({"step": 1, "loss": 2}, {"step": 2, "loss": 1}, {"step": 3, "loss": 0.5})

        printed = self.send("--follow", during=[resume, again])

        self.assertEqual([step for step, _ in self.logged], [0, 1, 2, 3])
        self.assertIn("skipped 1 records: the steps to 2 were sent before", printed)
        self.assertIn("skipped 2 records", printed)

    def test_a_resumed_run_is_recognised_after_a_second_start(self):
        self.append({"step": 0, "loss": 3}, {"step": 1, "loss": 2})
        self.send()
        self.replace({"step": 0, "loss": 3}, {"step": 1, "loss": 2}, {"step": 2, "loss": 1})

        self.send()

        self.assertEqual([step for step, _ in self.logged], [0, 1, 2])

    def test_a_restart_is_no_step(self):
        self.append({"step": 0, "loss": 3}, {"event": "restart", "restarts": 1, "cause": "killed"})
        self.append({"step": 1, "event": "restart", "restarts": 2, "cause": "killed"})
        self.send()
        self.replace({"step": 0, "loss": 3}, {"step": 1, "loss": 2})

        self.send()

        self.assertEqual(self.logged, [(0, {"loss": 3}), (1, {"loss": 2})])

    def test_values_that_are_not_finite_stay_so(self):
        self.append({"step": 0, "loss": "NaN", "norm": "Infinity", "note": "text"})

        self.send()

        self.assertEqual(str(self.logged), "[(0, {'loss': nan, 'norm': inf})]")

    def test_a_folder_without_metrics_and_a_line_that_is_no_json_are_errors(self):
        with self.assertRaisesRegex(SystemExit, "metrics.jsonl is not there; give the folder of a run"):
            self.send()
        self.metrics.write_text("{]\n")
        with self.assertRaisesRegex(SystemExit, "a line before byte 3 is not JSON"):
            self.send()


if __name__ == "__main__":
    unittest.main()
