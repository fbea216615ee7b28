"""Checks README.md and docs/: links lead somewhere, and the section on taking one library is what //tests/consumer builds."""

import pathlib
import re
import tempfile
import unittest

import workspace

CONSUMER = workspace.root() / "tests/consumer"


def snippets(readme, name):
    """Returns the code under the comment `# name` in the blocks of code, with the comment."""
    found = re.findall(rf"^# {re.escape(name)}\n.*?(?=^# [A-Z]+(?:\.bazel)?\n|^```)", readme, re.MULTILINE | re.DOTALL)
    return [text.rstrip("\n") + "\n" for text in found]


def anchors(page):
    """Returns the names that a page's headings have in links."""
    titles = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", page, flags=re.MULTILINE | re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def broken_links(top):
    """Yields each link of README.md and docs/ to a file or a heading that is not there."""
    for path in [top / "README.md", *sorted((top / "docs").glob("*.md"))]:
        for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
            name, _, anchor = target.partition("#")
            if "://" in name:
                continue
            file = path.parent / name if name else path
            if not file.exists():
                yield f"{path.relative_to(top)}: {target}: there is no such file"
            elif anchor and anchor not in anchors(file.read_text()):
                yield f"{path.relative_to(top)}: {target}: {file.name} has no such heading"


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

    def test_links_lead_to_files_and_headings(self):
        self.assertEqual(list(broken_links(workspace.root())), [])

    def test_the_map_names_every_folder(self):
        text = (workspace.root() / "docs/ARCHITECTURE.md").read_text()
        described_together = ("third_party/", "tests/", "driver/lua/bind/", "driver/lua/lockstep/")
        folders = {path.rpartition("/")[0] for path in workspace.files(workspace.root()) if workspace.is_build_file(path)}
        leaves = {f for f in folders if not any(other.startswith(f"{f}/") for other in folders)}

        self.assertEqual({f for f in leaves if f"`{f}/`" not in text and not f.startswith(described_together)}, {""})

    def test_a_broken_link_is_found(self):
        with tempfile.TemporaryDirectory() as folder:
            top = pathlib.Path(folder)
            (top / "docs").mkdir()
            (top / "README.md").write_text("[a](docs/a.md#the-b) [c](docs/c.md) [d](docs/a.md#d) [e](https://e.org/f)\n")
            (top / "docs/a.md").write_text("# A\n## The `b`\n```\n# d\n```\n[self](#a)\n")

            self.assertEqual(list(broken_links(top)), [
                "README.md: docs/c.md: there is no such file",
                "README.md: docs/a.md#d: a.md has no such heading"])

    def test_a_snippet_ends_where_the_next_file_begins(self):
        text = "```python\n# WORKSPACE\na(1)\n\n# BUILD\nb(2)\n```\n"

        self.assertEqual(snippets(text, "WORKSPACE"), ["# WORKSPACE\na(1)\n"])
        self.assertEqual(snippets(text, "BUILD"), ["# BUILD\nb(2)\n"])


if __name__ == "__main__":
    unittest.main()
