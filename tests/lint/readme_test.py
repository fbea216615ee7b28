"""Checks README.md, docs/ and the other pages: links lead somewhere, docs/README.md lists every page, paths that the pages at
the top name are there, and the section on taking one library is what //tests/consumer builds."""

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
    """Yields each link of a page to a file or a heading that is not there."""
    for path in [*sorted(top.glob("*.md")), *sorted((top / "docs").rglob("*.md"))]:
        for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
            name, _, anchor = target.partition("#")
            if "://" in name:
                continue
            file = path.parent / name if name else path
            if not file.exists():
                yield f"{path.relative_to(top)}: {target}: there is no such file"
            elif anchor and anchor not in anchors(file.read_text()):
                yield f"{path.relative_to(top)}: {target}: {file.name} has no such heading"


def unlisted_pages(top):
    """Returns the names of pages in docs/ that docs/README.md has no link to."""
    listed = set(re.findall(r"\]\(([^)#]+)", (top / "docs/README.md").read_text()))
    return {path.name for path in (top / "docs").glob("*.md")} - listed - {"README.md"}


def missing_paths(top, page):
    """Returns each `path` of the page, one with a slash in it, that is not in the workspace."""
    names = re.findall(r"`([\w.-]+/[\w./-]*)`", (top / page).read_text())
    return [name for name in names if not (top / name).exists()]


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
        described_together = ("third_party/", "tests/", "driver/lua/bind/", "driver/lualib/lockstep/")
        folders = {path.rpartition("/")[0] for path in workspace.files(workspace.root()) if workspace.is_build_file(path)}
        leaves = {f for f in folders if not any(other.startswith(f"{f}/") for other in folders)}

        self.assertEqual({f for f in leaves if f"`{f}/`" not in text and not f.startswith(described_together)}, {""})

    def test_the_list_of_pages_has_every_page(self):
        self.assertEqual(unlisted_pages(workspace.root()), set())

    def test_the_recipes_name_files_that_are_there(self):
        for page in ("CONTRIBUTING.md", "SECURITY.md"):
            with self.subTest(page):
                self.assertEqual(missing_paths(workspace.root(), page), [])

    def test_a_page_that_is_not_listed_and_a_path_that_is_gone_are_found(self):
        with tempfile.TemporaryDirectory() as folder:
            top = pathlib.Path(folder)
            (top / "docs").mkdir()
            (top / "docs/README.md").write_text("[a](a.md#b) and `docs/a.md`, `kernels/gone.cc`, `x:NAME`, `a`\n")
            (top / "docs/a.md").write_text("")
            (top / "docs/c.md").write_text("")

            self.assertEqual(unlisted_pages(top), {"c.md"})
            self.assertEqual(missing_paths(top, "docs/README.md"), ["kernels/gone.cc"])

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
