"""Source files are in form here, and every kind of breach is found where there is one."""

import unittest

import fixture
import sources
import workspace

GOOD = """// Draws kites: see docs/kites.md.

#ifndef LOCKSTEP_DRIVER_KITE_H_
#define LOCKSTEP_DRIVER_KITE_H_

int kites();

#endif  // LOCKSTEP_DRIVER_KITE_H_
"""


class SourcesTest(unittest.TestCase):

    def assert_finds(self, text, fragment, path="driver/kite.h"):
        problems = fixture.problems(sources.check, {path: text})
        self.assertEqual(len(problems), 1, problems)
        self.assertIn(fragment, problems[0])

    def test_this_workspace_is_in_form(self):
        fixture.assert_none(self, sources.check(workspace.root()))
        print("\n".join(f"advice: {line}" for line in sources.advice(workspace.root())))

    def test_a_sound_header_has_no_breach(self):
        self.assertEqual([], fixture.problems(sources.check, {"driver/kite.h": GOOD}))

    def test_a_header_without_a_comment_at_its_top_is_found(self):
        comment, rest = GOOD.split("\n", 1)
        for text in (rest, "\n" + GOOD, "// Kites\n" + rest, comment[3:] + "\n" + rest):
            with self.subTest(text):
                self.assert_finds(text, "driver/kite.h:1: a header begins with a comment")

    def test_a_guard_of_another_path_is_found(self):
        self.assert_finds(GOOD.replace("_KITE_", "_KITES_"), "is LOCKSTEP_DRIVER_KITE_H_")

    def test_a_guard_that_is_not_defined_is_found(self):
        self.assert_finds(GOOD.replace("#define LOCKSTEP_DRIVER_KITE_H_\n", ""), "driver/kite.h:3: the include guard")

    def test_a_guard_whose_end_does_not_name_it_is_found(self):
        self.assert_finds(GOOD.replace("#endif  // LOCKSTEP_DRIVER_KITE_H_", "#endif"), "behind the last #endif")

    def test_code_behind_the_guard_is_found(self):
        self.assert_finds(GOOD + "int more();\n", "behind the last #endif")

    def test_pragma_once_is_found_outside_third_party(self):
        text = "// Draws kites: see docs/kites.md.\n#pragma once\nint kites();\n"

        self.assert_finds(text, "the include guard of this path is LOCKSTEP_DRIVER_KITE_H_")
        self.assertEqual([], fixture.problems(sources.check, {"third_party/kites/kite.h": text}))

    def test_a_wait_by_the_clock_on_the_wall_is_found(self):
        for code in ("absl::Time end = absl::Now() + timeout;", "auto now = std::chrono::system_clock::now();",
                     "clock_gettime(CLOCK_REALTIME, &now);", "gettimeofday(&now, nullptr);", "sem_timedwait(&done, &end);"):
            with self.subTest(code):
                self.assert_finds(f"\nvoid Wait() {{ {code} }}\n", "driver/kite.cc:2: ", "driver/kite.cc")
        self.assertEqual([], fixture.problems(sources.check, {"driver/launch/rank.cc": "auto now = absl::Now();\n"}))

    def test_a_python_that_reads_the_current_folder_is_found(self):
        for command in ("python3 -c 'import os'", "python3 -m pip install kites", "python3 - <<'PYTHON'", "python -B -c 1",
                        """torch=$("$python" -c '1')"""):
            for path in ("fly", "driver/fly.sh", "scripts/Dockerfile"):
                with self.subTest(command + path):
                    self.assert_finds(f"\n{command}\n", f"{path}:2: ", path)
        for command in ("python3 -I -m pip", "python3 -I -B -c 1", "python3 kites.py -c", "python3-pip - a package"):
            with self.subTest(command):
                self.assertEqual([], fixture.problems(sources.check, {"fly": command + "\n"}))

    def test_a_loop_that_would_run_on_one_thread_is_found(self):
        text = "void Run() { at::parallel_for(0, 3, 1, [](int64_t, int64_t) {}); }\n"

        self.assertEqual(["driver/kite.cc: calls at::parallel_for; call ParallelFor of kernels/aten/parallel.h"],
                         fixture.problems(sources.check, {"driver/kite.cc": text}))
        self.assertEqual([], fixture.problems(sources.check, {"kernels/aten/parallel.cc": text}))

    def test_a_type_that_two_headers_define_is_found(self):
        kite = GOOD.replace("int kites();", "namespace sky {\n\nstruct Kite {\n  int tails;\n};\n\n}  // namespace sky")
        other = kite.replace("_KITE_", "_OTHER_")
        changes = {"driver/kite.h": kite, "driver/other.h": other}

        self.assertEqual(["driver/other.h:8: defines sky::Kite, as driver/kite.h does"],
                         fixture.problems(sources.check, changes))
        for harmless in (other.replace("sky {", "sea {"), other.replace(" {\n  int tails;\n}", "")):
            with self.subTest(harmless):
                self.assertEqual([], fixture.problems(sources.check, changes | {"driver/other.h": harmless}))

    def test_advice_names_folders_of_more_than_30_files(self):
        texts = {f"docs/{i}.md": "A page.\n" for i in range(31)}

        self.assertEqual(["docs: has 31 files; is it one concept?"], fixture.problems(sources.advice, texts))
        self.assertEqual([], fixture.problems(sources.check, texts))

    def test_advice_names_files_of_more_than_500_lines(self):
        for path in ("driver/long.cc", "scripts/long.lua", "tests/long.py"):
            with self.subTest(path):
                self.assertEqual([f"{path}: has 501 lines; is it one thing?"],
                                 fixture.problems(sources.advice, {path: "\n" * 501}))
                self.assertEqual([], fixture.problems(sources.advice, {path: "\n" * 500}))

    def test_a_generated_file_may_be_as_long_as_it_is(self):
        self.assertEqual([], fixture.problems(sources.advice, {sources.GENERATED[0]: "\n" * 9000}))


if __name__ == "__main__":
    unittest.main()
