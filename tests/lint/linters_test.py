"""The linters' own tests find what they are for: each runs here on a small workspace with a fault in it."""

import pathlib
import shutil
import subprocess
import tempfile
import unittest

import workspace


def run(script, config, path, text):
    """Runs tests/lint/<script> in a workspace of this one file; returns its exit code and what it printed."""
    with tempfile.TemporaryDirectory() as folder:
        top = pathlib.Path(folder)
        for source in (f"tests/lint/{script}", config):
            (top / source).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(workspace.root() / source, top / source)
        (top / path).parent.mkdir(parents=True, exist_ok=True)
        (top / path).write_text(text)
        result = subprocess.run([top / "tests/lint" / script], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                text=True, check=False)
    return result.returncode, result.stdout


def run_luacheck(text, path="scripts/a.lua"):
    return run("luacheck_test.sh", ".luacheckrc", path, text)


def run_clang_format(text, path="driver/a.cc"):
    return run("clang_format_test.sh", ".clang-format", path, text)


def run_clang_tidy(text, config=".clang-tidy"):
    """Runs clang_tidy.sh on a source that includes batching/a.h with this text. Returns its exit code, the report and what
    it printed."""
    with tempfile.TemporaryDirectory() as folder:
        top = pathlib.Path(folder)
        shutil.copy(workspace.root() / ".clang-tidy", top / config)
        (top / "batching").mkdir()
        (top / "batching/a.h").write_text(text)
        (top / "all.cc").write_text('#include "batching/a.h"\n')
        command = [workspace.root() / "tests/lint/clang_tidy.sh", "report", "all.cc", "-iquote", "."]
        result = subprocess.run(command, cwd=top, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                check=False)
        return result.returncode, (top / "report").read_text(), result.stdout


class LuacheckTest(unittest.TestCase):

    def test_a_sound_file_passes(self):
        code, output = run_luacheck("local bit = require 'bit'\nlockstep.scope(print, bit.tobit(1))\n")

        self.assertEqual(0, code, output)

    def test_faults_are_found(self):
        for text, warning in (("local unused = 1\n", "W211"), ("prnt(1)\n", "W113"), ("x = 1\n", "W111"),
                              ("lockstep = 1\n", "W121"), ("print(" + "1" * 120 + ")\n", "W631"),
                              ("return (\n", "E011")):
            with self.subTest(warning):
                code, output = run_luacheck(text)

                self.assertNotEqual(0, code)
                self.assertIn("scripts/a.lua", output)
                self.assertIn(warning, output)

    def test_a_stub_need_not_read_its_arguments(self):
        text = "local dist = {}\nfunction dist.send(x) end\nreturn dist\n"

        self.assertEqual(0, run_luacheck(text, "driver/lualib/types/distributed.lua")[0])
        self.assertNotEqual(0, run_luacheck(text, "driver/lualib/lockstep/distributed.lua")[0])

    def test_what_is_fetched_or_generated_is_left_out(self):
        for path in ("bazel-out/a.lua", "runs/a.lua", "driver/lualib/types/torch.lua",
                     "driver/lualib/types/torch_internal.lua", "driver/lualib/types/core.lua",
                     "driver/lualib/types/core_sharding.lua"):
            with self.subTest(path):
                self.assertEqual(0, run_luacheck("x = 1\n", path)[0])


class ClangFormatTest(unittest.TestCase):

    def test_a_formatted_file_passes(self):
        code, output = run_clang_format("int main() { return 0; }\n")

        self.assertEqual(0, code, output)

    def test_a_file_that_is_not_formatted_is_named_with_the_command_that_formats_it(self):
        for path in ("driver/a.cc", "batching/a.h", "third_party/cuda/a.cu"):
            with self.subTest(path):
                code, output = run_clang_format("int main()\n{\n    return 0;\n}\n", path)

                self.assertEqual(1, code)
                self.assertIn(f"clang-format -i {path}\n", output)

    def test_lines_may_have_100_columns(self):
        fits = "int a = " + "1" * 91 + ";\n"

        self.assertEqual(0, run_clang_format(fits)[0])
        self.assertEqual(1, run_clang_format("int a = f(" + "11, " * 22 + "1);\n")[0])

    def test_a_workspace_without_cpp_is_a_mistake(self):
        self.assertEqual(1, run_clang_format("", "bazel-out/a.cc")[0])


class ClangTidyTest(unittest.TestCase):

    def test_reports_a_fault_in_a_header(self):
        code, report, _ = run_clang_tidy("inline double Half(int n) { return n / 2; }\n")

        self.assertEqual(0, code)
        self.assertRegex(report, r"^batching/a\.h:1:\d+: warning: .*\[bugprone-integer-division\]")

    def test_reports_a_header_that_does_not_compile(self):
        code, report, _ = run_clang_tidy("inline int One() { return two; }\n")

        self.assertEqual(0, code)
        self.assertRegex(report, r"^batching/a\.h:1:\d+: error: use of undeclared identifier 'two'")

    def test_reports_nothing_without_a_fault(self):
        self.assertEqual((0, "", ""), run_clang_tidy("inline int One() { return 1; }\n"))

    def test_fails_where_clang_tidy_does(self):
        code, _, output = run_clang_tidy("", config="clang-tidy")

        self.assertEqual(1, code)
        self.assertIn("clang-tidy ended with 1 and named no fault:\nError: can't read config-file", output)


if __name__ == "__main__":
    unittest.main()
