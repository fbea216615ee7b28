"""A small workspace for tests of the checks, with or without a broken rule in it."""

import pathlib
import tempfile

SOUND = {
    "batching/BUILD": '''
package(default_visibility = ["//visibility:private"])

cc_library(
    name = "batching",
    srcs = ["plan.cc"],
    hdrs = ["plan.h"],
    visibility = ["//visibility:public"],
    deps = [
        ":cost",
        "@com_google_absl//absl/status",
    ],
)

cc_library(
    name = "cost",
    hdrs = ["cost.h"],
)

cc_library(
    name = "torch",
    srcs = ["prepare.cc"],
    visibility = ["//visibility:public"],
    deps = [
        ":batching",
        "@libtorch",
    ],
)
'''.lstrip(),
    "batching/plan.h": """// Plans micro-batches.
#ifndef LOCKSTEP_BATCHING_PLAN_H_
#define LOCKSTEP_BATCHING_PLAN_H_
#endif  // LOCKSTEP_BATCHING_PLAN_H_
""",
    "batching/cost.h": """// Costs of micro-batches.
#ifndef LOCKSTEP_BATCHING_COST_H_
#define LOCKSTEP_BATCHING_COST_H_
#endif  // LOCKSTEP_BATCHING_COST_H_
""",
    "batching/plan.cc": '#include "batching/plan.h"\n#include <vector>\n#include "absl/status/status.h"\n',
    "batching/prepare.cc": '#include "ATen/ops/full.h"\n#include "batching/plan.h"\n'
                           '#include "torch/csrc/distributed/c10d/reducer.hpp"\n',
    "driver/BUILD": 'cc_binary(\n    name = "lockstep",\n    deps = ["//driver/lua:batching"],\n)\n',
    "driver/lua/BUILD": 'cc_library(\n    name = "batching",\n    deps = ["//batching"],\n)\n',
    "driver/lua/bind/batching/batching.cc": '#include "batching/plan.h"\n#include "lua.hpp"\n',
    "scripts/BUILD": 'lua_test(\n    name = "a_test",\n    data = ["//driver:lockstep"],\n)\n',
    "scripts/a.lua": "print(1)\n",
}


def problems(check, changes):
    """Returns the findings of `check` on the sound workspace with `changes`: content by path, None for a missing file."""
    with tempfile.TemporaryDirectory() as top:
        for path, text in {**SOUND, **changes}.items():
            if text is not None:
                file = pathlib.Path(top) / path
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text)
        return list(check(top))


def build(path, old, new):
    """The BUILD file `path` of the sound workspace with `old` replaced, as a change."""
    assert old in SOUND[path], f"{old} is not in {path}"
    return {path: SOUND[path].replace(old, new)}


def assert_none(test, found):
    """Fails with one problem a line, where there are any."""
    test.assertFalse(found, "\n".join(["", *found]))
