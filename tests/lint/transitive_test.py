"""Checks the transitive dependencies of libraries (genquery): no other library, no driver, no Lua; and
the core of a library nothing of libtorch. Run by Bazel, which writes the lists that this reads."""

import pathlib
import re
import unittest

import fixture
import layers
import workspace

_LISTS = pathlib.Path("tests/lint")


def dependencies(name):
    return (_LISTS / name).read_text().split()


def external(label):
    """"libtorch" of @libtorch//:x, also as newer Bazels spell it; None of a label of ours."""
    match = re.match(r"@+([\w.~+-]+)//", label)
    return match.group(1) if match else None


def breaches(library, labels, repositories):
    """Returns the labels of another library, of the driver, of scripts, or of one of these repositories."""
    for label in labels:
        package = re.match(r"(?:@*//)?([\w-]*)", label).group(1)
        foreign = package in layers.LIBRARIES + ("driver", "scripts") and package != library
        if external(label) in repositories or external(label) is None and foreign:
            yield f"{library}: {label}"


def layers_there_are():
    """(library, layer) of every //library and //library:torch of this workspace."""
    names = {(rule.package, rule.name) for _, rule in workspace.build_rules(workspace.root())}
    for library in layers.LIBRARIES:
        for layer in (library, "torch"):
            if (library, layer) in names:
                yield library, layer


class TransitiveTest(unittest.TestCase):

    def test_every_layer_of_every_library_is_asked_about(self):
        asked = {path.name for path in _LISTS.glob("deps_of_*")}

        expected = {f"deps_of_{library}_{layer}" for library, layer in layers_there_are()}

        self.assertTrue(expected)
        self.assertEqual(expected, asked, "tests/lint/BUILD must name the libraries that there are, and their layers")

    def test_a_core_reaches_no_libtorch_no_lua_no_other_library_and_no_driver(self):
        for library in (library for library, layer in layers_there_are() if layer == library):
            labels = dependencies(f"deps_of_{library}_{library}")

            self.assertIn(f"//{library}:{library}", labels)
            fixture.assert_none(self, [*breaches(library, labels, {"libtorch", "cuda", "luajit"})])

    def test_a_torch_layer_reaches_no_lua_no_other_library_and_no_driver(self):
        for library in (library for library, layer in layers_there_are() if layer == "torch"):
            labels = dependencies(f"deps_of_{library}_torch")

            self.assertTrue([x for x in labels if external(x) == "libtorch"], labels)
            fixture.assert_none(self, [*breaches(library, labels, {"luajit"})])

    def test_a_breach_is_found_however_bazel_spells_it(self):
        for label in ("//sharding:sharding", "//driver/lua:vm", "//scripts:a", "@libtorch//:libtorch",
                      "@@libtorch//:x"):
            with self.subTest(label):
                self.assertEqual([f"batching: {label}"], [*breaches("batching", [label], {"libtorch"})])
        for label in ("//batching:plan", "@com_google_absl//absl/status:status", "//third_party/cuda:x"):
            with self.subTest(label):
                self.assertEqual([], [*breaches("batching", [label], {"libtorch"})])


if __name__ == "__main__":
    unittest.main()
