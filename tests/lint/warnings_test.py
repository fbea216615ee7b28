"""Checks that warnings are errors in all our C++ folders, and that clang-tidy reads all our headers."""

import re
import unittest

import workspace

TOP = workspace.root()


def one(pattern, path):
    return re.compile(re.search(pattern, (TOP / path).read_text(), re.MULTILINE)[1])


class WarningsTest(unittest.TestCase):

    def setUp(self):
        # third_party/ stands in for what others wrote.
        self.files = [path for path in workspace.files(TOP) if not path.startswith("third_party/")]

    def test_warnings_are_errors_in_every_source(self):
        ours = one(r"^build --per_file_copt=(.*)@-Wall,-Wextra,-Werror$", ".bazelrc")
        sources = [path for path in self.files if path.endswith(".cc")]

        self.assertGreater(len(sources), 100)
        self.assertEqual([path for path in sources if not ours.match(path)], [])

    def test_clang_tidy_reads_every_header(self):
        ours = one(r"^HeaderFilterRegex: '(.*)'$", ".clang-tidy")
        headers = [path for path in self.files if path.endswith(".h")]

        self.assertGreater(len(headers), 100)
        for prefix in ("", "./", "/home/me/project/./", "/home/me/kernels/"):
            self.assertEqual([path for path in headers if not ours.match(prefix + path)], [])
        self.assertIsNone(ours.match("/usr/include/c++/12/vector.h"))


if __name__ == "__main__":
    unittest.main()
