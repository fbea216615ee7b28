"""Checks docs/cpp/generate.py, which writes a page for each C++ library from its headers, and that the pages are current."""

import importlib.util
import pathlib
import tempfile
import unittest

import fixture
import workspace


def load():
    spec = importlib.util.spec_from_file_location("cpp", workspace.root() / "docs/cpp/generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


CPP = load()
HEADER = """// Plans <micro> steps. Fast.
//
//    Plan plan = MakePlan({1});
//
//    Use(plan);
// Thread-safe.

#ifndef LOCKSTEP_BATCHING_PLAN_H_
#define LOCKSTEP_BATCHING_PLAN_H_

#include <vector>

namespace lockstep::batching {

// Makes a plan.
Plan MakePlan(std::vector<int> x);

class Steps {
 public:
  int next();

 private:
  struct State {
    int n;
  };
  int n_;
};

}  // namespace lockstep::batching

#endif  // LOCKSTEP_BATCHING_PLAN_H_
"""
SECTION = """## batching/plan.h

Plans \\<micro\\> steps. Fast.

```cpp
Plan plan = MakePlan({1});

Use(plan);
```

Thread-safe.

```cpp
// Makes a plan.
Plan MakePlan(std::vector<int> x);

class Steps {
 public:
  int next();
};
```
"""


class CppTest(unittest.TestCase):

    def workspace(self, changes):
        top = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        for path, text in {**fixture.SOUND, **changes}.items():
            (top / path).parent.mkdir(parents=True, exist_ok=True)
            (top / path).write_text(text)
        return top

    def test_the_pages_are_current(self):
        folder = workspace.root() / "docs/cpp"
        pages = CPP.pages(workspace.root())

        self.assertEqual({path.name for path in folder.glob("*.md")}, set(pages))
        for name, text in pages.items():
            if (folder / name).read_text() != text:
                self.fail(f"docs/cpp/{name} is not what the headers say; run python3 docs/cpp/generate.py")

    def test_a_header_is_prose_its_example_and_what_is_public(self):
        top = self.workspace({"batching/plan.h": HEADER})

        self.assertEqual("\n".join(CPP.section(top, "batching/plan.h")), SECTION)

    def test_public_headers_are_those_of_the_public_targets(self):
        aggregate = """
cc_library(
    name = "batching",
    deps = [
        "//batching/part",
        "@com_google_absl//absl/status",
    ],
)

cc_library(
    name = "torch",
    srcs = ["prepare.cc"],
    hdrs = ["cost.h"],
    deps = [":private"],
)

cc_library(
    name = "private",
    hdrs = ["plan.h"],
)
"""
        part = 'cc_library(\n    name = "part",\n    srcs = ["a.cc"],\n    hdrs = ["a.h"],\n    deps = [":b"],\n)\n'
        top = self.workspace({"batching/BUILD": aggregate, "batching/part/BUILD": part, "batching/part/a.h": HEADER})

        self.assertEqual(CPP.public_headers(top, "batching"),
                         [("//batching", "batching/part/a.h"), ("//batching:torch", "batching/cost.h")])


if __name__ == "__main__":
    unittest.main()
