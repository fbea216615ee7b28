"""Tests the code of docs/python.md: the trainer is tests/two_kinds.py as it is, and the other blocks run on two ranks."""

import os
import pathlib
import unittest

from launch import FOLDER, torchrun


def blocks():
    """Returns the blocks of Python, each with empty lines before it, so that an error names the page's line."""
    found, inside = [], False
    for number, line in enumerate(pathlib.Path("docs/python.md").read_text().splitlines()):
        if line.startswith("```"):
            inside = line == "```python"
            if inside:
                found.append((number + 1, []))
        elif inside:
            found[-1][1].append(line)
    return found


class PageTest(unittest.TestCase):
    def test_the_trainer_is_the_tested_one(self):
        self.assertEqual("\n".join(blocks()[0][1]) + "\n", (FOLDER / "two_kinds.py").read_text())
        self.assertLessEqual(len(blocks()[0][1]), 60)

    def test_the_other_blocks_are_a_program(self):
        lines = []
        for begin, block in blocks()[1:]:
            lines += [""] * (begin - len(lines)) + block
        program = pathlib.Path(os.environ["TEST_TMPDIR"]).absolute() / "page.py"
        # torchrun starts Python with -u, by which the words of two ranks mix in one line.
        lines[0] = "import sys; sys.stdout = open(1, 'w', buffering=1, closefd=False)"
        program.write_text("\n".join(lines) + "\n")
        code, _, output = torchrun(2, program)
        self.assertEqual(code, 0, output)
        for text in (
            "rank 0: 3 steps, 0 dropped",
            "rank 1: 3 steps, 1 dropped",
            'disagree at "step 1"',
            "[1, 2, 3, 4] [0, 1, 2, 0] [3, 1]",
        ):
            self.assertIn(text, output)
