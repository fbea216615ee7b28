"""Checks that README.md's section on taking one library matches the code that //tests/consumer builds."""

import re
import unittest

import workspace

CONSUMER = workspace.root() / "tests/consumer"


def snippets(readme, name):
    """Returns the code under the comment `# name` in the blocks of code, with the comment."""
    found = re.findall(rf"^# {re.escape(name)}\n.*?(?=^# [A-Z]+(?:\.bazel)?\n|^```)", readme, re.MULTILINE | re.DOTALL)
    return [text.rstrip("\n") + "\n" for text in found]


class ReadmeTest(unittest.TestCase):

    def setUp(self):
        self.readme = (workspace.root() / "README.md").read_text()

    def test_its_files_are_those_that_are_built(self):
        for name, path in (
            ("WORKSPACE", "WORKSPACE.consumer"),
            ("BUILD", "batching/BUILD.consumer"),
            ("MODULE.bazel", "MODULE.consumer"),
        ):
            with self.subTest(name):
                self.assertEqual(snippets(self.readme, name), [(CONSUMER / path).read_text()])

    def test_its_command_is_the_one_that_builds_them(self):
        self.assertIn("`bazel build --cxxopt=-std=c++20 //:plan`", self.readme)
        self.assertIn("bazel build --cxxopt=-std=c++20 ", (CONSUMER / "consumer_test.sh").read_text())

    def test_a_snippet_ends_where_the_next_file_begins(self):
        text = "```python\n# WORKSPACE\na(1)\n\n# BUILD\nb(2)\n```\n"

        self.assertEqual(snippets(text, "WORKSPACE"), ["# WORKSPACE\na(1)\n"])
        self.assertEqual(snippets(text, "BUILD"), ["# BUILD\nb(2)\n"])


if __name__ == "__main__":
    unittest.main()
