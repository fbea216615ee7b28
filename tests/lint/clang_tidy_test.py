"""Checks that clang-tidy has read every header of ours, and has found nothing. Run by Bazel, which runs clang-tidy."""

import pathlib
import re
import unittest

import workspace

_READ = pathlib.Path("tests/lint/headers")

# large_headers.h is empty for clang. Those of kernels/cuda belong to no target where there is no CUDA toolkit.
_NOT_READ = ("third_party/", "base/torch/large_headers.h", "kernels/cuda/")


class ClangTidyTest(unittest.TestCase):

    def test_finds_nothing_in_our_headers(self):
        self.assertEqual("", _READ.with_suffix(".txt").read_text().strip())

    def test_has_read_every_header(self):
        headers = [path for path in workspace.files(workspace.root())
                   if path.endswith(".h") and not path.startswith(_NOT_READ)]

        read = re.findall(r'^#include "(.*)"$', _READ.with_suffix(".cc").read_text(), re.MULTILINE)

        self.assertGreater(len(headers), 100)
        self.assertEqual([], sorted(set(headers) - set(read)), "add the library of each to `headers` in tests/lint/BUILD")


if __name__ == "__main__":
    unittest.main()
