"""BUILD files are laid out as buildifier would, and every kind of breach is found where there is one."""

import unittest

import build_layout
import fixture
import workspace

GOOD = """# A comment.

load("//x:a.bzl", "a")
load("//x:b.bzl", "b")

package(default_visibility = ["//visibility:private"])

cc_library(
    name = "kite",
    testonly = True,
    srcs = [
        "a.cc",
        "a_b.cc",
        ":generated",
        "//x",
        "//x:y",
        "@z",
    ],
    hdrs = ["a.h"],
    copts = ["-O2"],
    visibility = ["//visibility:public"],
    deps = [":other"],
)
"""


class BuildLayoutTest(unittest.TestCase):

    def assert_finds(self, old, new, *fragments):
        self.assertIn(old, GOOD)
        problems = build_layout.check_file("x/BUILD", GOOD.replace(old, new))
        self.assertEqual(len(problems), 1, problems)
        for fragment in fragments:
            self.assertIn(fragment, problems[0])

    def test_this_workspace_is_in_order(self):
        fixture.assert_none(self, build_layout.check(workspace.root()))

    def test_a_file_in_order_has_no_breach(self):
        self.assertEqual([], build_layout.check_file("x/BUILD", GOOD))
        self.assertEqual([], build_layout.check_file("x/BUILD", ""))

    def test_every_kind_of_build_file_is_checked(self):
        for path in ("x/BUILD", "x/BUILD.bazel", "x/BUILD.consumer", "third_party/x/x.BUILD"):
            with self.subTest(path):
                self.assertEqual(1, len(fixture.problems(build_layout.check, {path: "f(\n  name = 1,\n)\n"})))

    def test_single_quotes_are_found(self):
        self.assert_finds('"kite"', "'kite'", "x/BUILD:9", "single quotes")

    def test_a_load_behind_a_rule_is_found(self):
        end = '    deps = [":other"],\n)\n'

        self.assert_finds(end, end + '\nload("//x:c.bzl", "c")\n', "load() comes before all else")

    def test_attributes_out_of_order_are_found(self):
        for old, new in (('    name = "kite",\n    testonly = True,', '    testonly = True,\n    name = "kite",'),
                         ('    copts = ["-O2"],\n', '    zopts = ["-O2"],\n'),
                         ('    deps = [":other"],', '    deps = [":other"],\n    linkstatic = True,')):
            with self.subTest(new):
                self.assert_finds(old, new, "x/BUILD:8: kite: the order of its attributes is name")

    def test_labels_out_of_order_are_found(self):
        for old, new in (('"a.cc",\n        "a_b.cc"', '"a_b.cc",\n        "a.cc"'),
                         ('":generated",\n        "//x"', '"//x",\n        ":generated"'),
                         ('"//x:y",\n        "@z"', '"@z",\n        "//x:y"')):
            with self.subTest(new):
                self.assert_finds(old, new, "x/BUILD:11: kite: srcs is not sorted")

    def test_an_order_that_matters_is_left_alone(self):
        self.assertEqual([], build_layout.check_file("x/BUILD", GOOD.replace('["-O2"]', '["-O2", "-O1"]')))

    def test_a_label_that_stands_twice_is_found(self):
        self.assert_finds('"a.cc",', '"a.cc",\n        "a.cc",', "lists something twice")

    def test_several_labels_in_one_line_are_found(self):
        self.assert_finds('deps = [":other"]', 'deps = [":other", ":rather"]', "each stands on a line of its own")

    def test_wrong_spaces_are_found(self):
        for old, new, fragment in (('    name = "kite"', '  name = "kite"', "indented by 2"),
                                   ('    name = "kite"', '\tname = "kite"', "tab"),
                                   ('"kite",', '"kite", ', "spaces at its end"),
                                   (')\n\ncc', ')\n\n\ncc', "more than one empty line"),
                                   (')\n\ncc', ')\ncc', "no empty line before it"),
                                   ('deps = [":other"],\n)\n', 'deps = [":other"],\n)', "one line break")):
            with self.subTest(fragment):
                self.assert_finds(old, new, fragment)


if __name__ == "__main__":
    unittest.main()
