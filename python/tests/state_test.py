"""Tests lockstep.state on states that the program has saved on two ranks."""

import json
import os
import pathlib
import subprocess
import unittest

import torch

from lockstep import state

SCRIPT = "python/tests/state_fixture.lua"
TEMPORARY = pathlib.Path(os.environ["TEST_TMPDIR"])


def train(folder, steps):
    """Returns the sum of each parameter after a number of steps, as the program's script prints it."""
    output = subprocess.run(
        ["driver/lockstep", "--nproc", "2", "--run-dir", folder, SCRIPT, "--set", f"steps={steps}"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return {
        name: float(value) for name, value in (line.split() for line in output.splitlines() if line[:2] in ("0.", "1."))
    }


class StateTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.run_folder = TEMPORARY / "run"
        cls.sums = train(cls.run_folder, 2)
        cls.folder = cls.run_folder / "state" / "step-00000002"

    def copy(self, name, change):
        """Saves a changed copy of the state for another run."""
        loaded = state.load(self.run_folder)
        change(loaded)
        state.save(loaded, TEMPORARY / name / "state" / "step-00000002")

    def test_the_newest_state_has_the_weights_and_the_optimizer(self):
        loaded = state.load(self.run_folder)
        self.assertEqual(state.latest(self.run_folder), self.folder)
        self.assertEqual((loaded.step, loaded.world_size), (2, 2))
        self.assertEqual(
            {name: tensor.shape for name, tensor in loaded.model.items()},
            {"0.weight": (3, 4), "0.bias": (3,), "1.weight": (2, 3), "1.bias": (2,)},
        )
        for name, tensor in loaded.model.items():
            self.assertAlmostEqual(tensor.sum().item(), self.sums[name], places=5)
        self.assertEqual(loaded.tensors["optimizer.state.0.weight.step"].item(), 2)
        self.assertEqual(state.load(self.folder.parent / "step-00000001").step, 1)

    def test_a_state_that_was_written_again_has_the_same_bytes(self):
        self.copy("same", lambda loaded: None)
        for path in self.folder.iterdir():
            self.assertEqual(
                (TEMPORARY / "same/state/step-00000002" / path.name).read_bytes(), path.read_bytes(), path.name
            )

    def test_a_view_that_is_conjugated_is_written_as_it_is(self):
        value = torch.tensor([1 + 2j]).conj()
        self.assertEqual(state._bytes_of(value), state._bytes_of(torch.tensor([1 - 2j])))

    def test_a_save_that_was_killed_is_in_nobodys_way(self):
        (TEMPORARY / "killed/state/step-00000002.lockstep-part").mkdir(parents=True)
        self.copy("killed", lambda loaded: None)
        self.assertEqual(state.load(TEMPORARY / "killed").step, 2)

    def test_a_run_goes_on_from_changed_weights(self):
        self.copy("changed", lambda loaded: loaded.model["0.weight"].zero_())
        self.assertEqual(train(TEMPORARY / "changed", 2)["0.weight"], 0)
        # Another step changes them: the optimizer's state came along.
        self.assertNotEqual(train(TEMPORARY / "changed", 3)["0.weight"], 0)

    def test_what_a_run_could_not_go_on_from_is_not_written(self):
        for i, (change, message) in enumerate(
            (
                (lambda s: s.model.pop("0.bias"), "the tensor 0.bias is missing"),
                (lambda s: s.model.update(extra=torch.zeros(1)), "has no tensor extra"),
                (lambda s: s.model.update({"0.bias": torch.zeros(4)}), r"0.bias is torch.float32 of shape \[4\], but"),
                (lambda s: s.model.update({"0.bias": torch.zeros(3).half()}), "0.bias is torch.float16"),
            )
        ):
            with self.subTest(message=message), self.assertRaisesRegex(ValueError, message):
                self.copy(f"wrong{i}", change)
            self.assertFalse((TEMPORARY / f"wrong{i}").exists())
        with self.assertRaisesRegex(ValueError, "belongs in a folder step-00000002, not in mine"):
            state.save(state.load(self.folder), TEMPORARY / "mine")
        with self.assertRaises(FileExistsError):
            state.save(state.load(self.folder), self.folder)

    def test_damage_is_found(self):
        def write(name, data):
            self.copy(name, lambda loaded: None)
            folder = TEMPORARY / name / "state" / "step-00000002"
            file, content = data(folder)
            file.write_bytes(content)
            return folder

        weights = "model-00001-of-00002.safetensors"
        for i, (change, message) in enumerate(
            (
                (
                    lambda f: (f / weights, (f / weights).read_bytes()[:-1]),
                    "bytes, but complete.json says .*it is torn",
                ),
                (lambda f: (f / weights, (f / weights).read_bytes()[:-1] + b"x"), "another checksum"),
                (
                    lambda f: (
                        f / "complete.json",
                        (f / "complete.json").read_bytes().replace(b'"step": 2', b'"step": 3'),
                    ),
                    "does not match its own checksum",
                ),
                (lambda f: (f / "complete.json", b"{"), "is no JSON"),
            )
        ):
            folder = write(f"damaged{i}", change)
            with self.subTest(message=message), self.assertRaisesRegex(ValueError, message):
                state.load(folder)
        # A name that leads out of the folder, and a header behind a checksum that matches.
        for name, text, message in (
            ("../secret", b"", "no file of a state"),
            (weights, b"\x08" + bytes(7) + b'{"a":[3]', "header that is none of safetensors"),
        ):
            marker = json.loads((self.folder / "complete.json").read_bytes())
            marker["files"] = {name: {"bytes": len(text), "crc32": state._checksum(text)}}
            marker["crc32"] = state._checksum_of_marker(marker)
            forged = TEMPORARY / f"forged{len(text)}" / "step-00000002"
            forged.mkdir(parents=True)
            (forged / weights).write_bytes(text)
            (forged / "complete.json").write_text(json.dumps(marker))
            with self.subTest(message=message), self.assertRaisesRegex(ValueError, message):
                state.load(forged)
        (folder / "complete.json").unlink()
        with self.assertRaisesRegex(ValueError, "is no whole state"):
            state.load(folder)
        with self.assertRaisesRegex(FileNotFoundError, "the run has saved no state"):
            state.load(folder.parent.parent)
