"""Runs compile_commands.py on testdata/aquery.json, which Bazel 4.2.3 printed: a library compiled twice
(position-independent and not), its test, and a file of googletest."""

import copy
import json
import pathlib
import unittest

import compile_commands

RECORDED = json.loads((pathlib.Path(__file__).resolve().parent / "testdata/aquery.json").read_text())["actions"]


def transform(actions):
    return compile_commands.transform(actions, "/home/ada/lockstep", "/cache", "/cache/out")


class CompileCommandsTest(unittest.TestCase):

    def setUp(self):
        self.entries = {entry["file"]: entry for entry in transform(RECORDED)}
        self.cost = self.entries["batching/cost.cc"]

    def test_every_source_of_the_workspace_has_one_entry_and_no_other_file_has(self):
        self.assertEqual(4, len(RECORDED))
        self.assertEqual(["batching/cost.cc", "batching/cost_test.cc"],
                         [entry["file"] for entry in transform(RECORDED)])

    def test_commands_run_in_the_workspace(self):
        self.assertEqual({"/home/ada/lockstep"}, {entry["directory"] for entry in self.entries.values()})

    def test_what_bazel_fetched_and_made_is_named_by_where_it_stays(self):
        arguments = self.cost["arguments"]
        paths = [arguments[i + 1] for i, a in enumerate(arguments) if a == "-iquote"]

        self.assertEqual([".", "/cache/out/k8-opt/bin", "/cache/external/com_google_absl",
                          "/cache/out/k8-opt/bin/external/com_google_absl"], paths)

    def test_flags_of_the_code_stay_in_order(self):
        arguments = self.cost["arguments"]

        self.assertEqual("/usr/bin/gcc", arguments[0])
        self.assertEqual(["-c", "batching/cost.cc"], arguments[-2:])
        self.assertLess(arguments.index("-std=c++0x"), arguments.index("-std=c++20"))
        for flag in ("-DNDEBUG", "-O2", "-Werror"):
            self.assertIn(flag, arguments)

    def test_flags_of_the_build_alone_are_dropped(self):
        recorded = " ".join(RECORDED[0]["arguments"])
        for flag in ("-MD", "-MF", "-frandom-seed=", "-fno-canonical-system-headers", " -o ", ".o", ".d"):
            self.assertIn(flag, recorded)
            self.assertFalse([a for a in self.cost["arguments"] if a == flag.strip() or a.startswith("-frandom")], flag)

    def test_of_two_compilations_the_programs_own_is_taken(self):
        self.assertTrue(any("-fPIC" in action["arguments"] for action in RECORDED))
        self.assertNotIn("-fPIC", self.cost["arguments"])

    def test_a_compilation_for_the_host_is_taken_where_there_is_no_other(self):
        host = copy.deepcopy(RECORDED[0])
        host["arguments"] = ["-DHOST"] + [a.replace("k8-opt", "host") for a in host["arguments"]]

        both = transform([host] + RECORDED)[0]
        alone = transform([host])[0]

        self.assertNotIn("-DHOST", both["arguments"])
        self.assertIn("-DHOST", alone["arguments"])

    def test_an_action_that_compiles_no_source_is_left_out(self):
        self.assertEqual([], transform([{"arguments": ["/usr/bin/ar", "-c"]}, {"mnemonic": "CppCompile"}]))


if __name__ == "__main__":
    unittest.main()
