"""Checks tools/check on a workspace with lints of its own."""

import pathlib
import shutil
import subprocess
import tempfile
import unittest

import workspace


class CheckTest(unittest.TestCase):

    def setUp(self):
        self.top = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        for path in ("tools/check", "tests/lint/python_test.sh", "tests/lint/unittest_xml.py"):
            (self.top / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(workspace.root() / path, self.top / path)

    def write(self, name, text):
        file = self.top / "tests/lint" / name
        file.write_text(text)
        file.chmod(0o755)

    def write_python(self, name, statement):
        self.write(name, f"import unittest\nclass T(unittest.TestCase):\n  def test_it(self):\n    {statement}\n")

    def check(self, command="tools/check"):
        ended = subprocess.run([self.top / command], cwd="/", stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                               check=False)
        return ended.returncode, ended.stdout

    def test_sound_lints_are_counted(self):
        self.write("form_test.sh", "#!/bin/sh\necho nothing to say\n")
        self.write_python("layers_test.py", "pass")
        self.write_python("transitive_test.py", "self.fail('needs Bazel')")
        self.write_python("clang_tidy_test.py", "self.fail('needs Bazel')")
        self.write("library_builds_test.sh", "#!/bin/sh\necho needs Bazel\nexit 1\n")

        self.assertEqual(self.check(), (0, "check: all 2 lints passed\n"))

    def test_each_lint_that_fails_is_shown(self):
        self.write("form_test.sh", "#!/bin/sh\necho a.cc is not formatted\nexit 1\n")
        self.write("good_test.sh", "#!/bin/sh\necho nothing to say\n")
        self.write_python("layers_test.py", "self.fail('an arrow upward')")

        code, output = self.check()

        self.assertEqual(code, 1)
        for text in ("== tests/lint/form_test.sh\na.cc is not formatted", "== tests/lint/layers_test.py", "an arrow upward",
                     "check: 2 of 3 lints failed"):
            self.assertIn(text, output)
        self.assertNotIn("nothing to say", output)

    def test_it_works_as_a_hook(self):
        self.write("form_test.sh", "#!/bin/sh\n")
        (self.top / ".git/hooks").mkdir(parents=True)
        (self.top / ".git/hooks/pre-commit").symlink_to("../../tools/check")

        self.assertEqual(self.check(".git/hooks/pre-commit"), (0, "check: all 1 lints passed\n"))


if __name__ == "__main__":
    unittest.main()
