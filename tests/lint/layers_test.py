"""The layer rules are kept here, and every kind of breach is found where there is one."""

import unittest

import fixture
import layers
import workspace


def add_dep(path, rule, label):
    return fixture.build(path, f'name = "{rule}",', f'name = "{rule}",\n    data = ["{label}"],')


class LayersTest(unittest.TestCase):

    def assert_finds(self, changes, *fragments):
        problems = fixture.problems(layers.check, changes)
        self.assertEqual(len(problems), 1, problems)
        for fragment in fragments:
            self.assertIn(fragment, problems[0])

    def test_this_workspace_keeps_the_rules(self):
        fixture.assert_none(self, layers.check(workspace.root()))

    def test_a_sound_workspace_has_no_breach(self):
        self.assertEqual([], fixture.problems(layers.check, {}))

    def test_a_library_that_depends_on_another_is_found(self):
        self.assert_finds(add_dep("batching/BUILD", "cost", "//mimo"),
                          "batching/BUILD:14", "batching depends on //mimo:mimo")

    def test_a_library_that_depends_on_a_part_of_another_is_found(self):
        self.assert_finds(add_dep("batching/BUILD", "cost", "//sharding/rings:torch"), "//sharding/rings:torch")

    def test_a_library_that_depends_on_the_driver_is_found(self):
        self.assert_finds(add_dep("batching/BUILD", "torch", "//driver:context"),
                          "batching/BUILD:19", "//driver:context")

    def test_a_part_of_python_that_depends_on_the_driver_is_found(self):
        rule = 'cc_library(\n    name = "plan",\n    deps = ["//driver:context"],\n)\n'
        self.assert_finds({"python/core/BUILD": rule}, "python/core/BUILD:1", "python/core depends on //driver:context")
        self.assertEqual([], fixture.problems(layers.check, {"python/wheel/BUILD": rule}))

    def test_a_library_that_loads_a_rule_of_the_driver_is_found(self):
        load = 'load("//driver/lualib:lua_test.bzl", "lua_test")\n\n'

        self.assert_finds({"batching/BUILD": load + fixture.SOUND["batching/BUILD"]},
                          "batching/BUILD:1", "//driver/lualib:lua_test.bzl")

    def test_a_library_that_depends_on_lua_is_found(self):
        self.assert_finds(add_dep("batching/BUILD", "torch", "@luajit"), "@luajit")

    def test_a_library_that_includes_another_is_found(self):
        self.assert_finds({"batching/plan.cc": '#include "batching/plan.h"\n#include "sharding/agreement/lockstep.h"\n'},
                          "batching/plan.cc:2", "sharding/agreement/lockstep.h")

    def test_a_library_that_includes_the_driver_is_found(self):
        self.assert_finds({"batching/plan.cc": '#include "driver/ranks/world.h"\n'}, "driver/ranks/world.h")

    def test_a_library_that_includes_lua_is_found(self):
        for header in ("lua.hpp", "lua.h", "lauxlib.h", "luajit-2.1/luajit.h"):
            with self.subTest(header):
                self.assert_finds({"batching/prepare.cc": f"#include <{header}>\n"}, header)

    def test_a_core_that_depends_on_libtorch_is_found(self):
        self.assert_finds(fixture.build("batching/BUILD", '@com_google_absl//absl/status"', '@libtorch//:headers"'),
                          "the core //batching:batching depends on @libtorch//:headers")

    def test_a_core_whose_part_depends_on_libtorch_is_found(self):
        self.assert_finds(fixture.build("batching/BUILD", 'hdrs = ["cost.h"],',
                                        'hdrs = ["cost.h"],\n    deps = ["@libtorch"],'),
                          "the core //batching:cost depends on @libtorch")

    def test_a_core_that_includes_libtorch_is_found(self):
        for header in ("ATen/ops/full.h", "c10/util/Exception.h", "torch/csrc/autograd/autograd.h"):
            with self.subTest(header):
                self.assert_finds({"batching/cost.h": f"#include <{header}>\n"}, "batching/cost.h:1", header, "core")

    def test_a_second_public_target_is_found(self):
        self.assert_finds(fixture.build("batching/BUILD", 'hdrs = ["cost.h"],',
                                        'hdrs = ["cost.h"],\n    visibility = ["//visibility:public"],'),
                          "batching/BUILD:14", "cost is public")

    def test_a_package_that_is_public_by_default_is_found(self):
        self.assert_finds(fixture.build("batching/BUILD", "visibility:private", "visibility:public"), "is public")

    def test_a_second_file_that_talks_to_c10d_is_found(self):
        for line in ('#include "torch/csrc/distributed/c10d/comm.hpp"', '#include "gloo/context.h"',
                     '#include "ATen/ops/_foreach_add.h"', "at::Tensor y = at::_softmax(x);"):
            with self.subTest(line):
                self.assert_finds({"batching/more.cc": line + "\n"}, "batching/more.cc:1", "batching/prepare.cc:3")

    def test_the_header_of_the_file_that_talks_to_c10d_may_too(self):
        changes = {"batching/prepare.h": '#include "torch/csrc/distributed/c10d/comm.hpp"\n'}

        self.assertEqual([], fixture.problems(layers.check, changes))

    def test_every_file_may_name_what_a_caller_hands_over(self):
        changes = {"batching/more.h": '#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"\n'
                                      '#include "torch/csrc/distributed/c10d/Store.hpp"\n'}

        self.assertEqual([], fixture.problems(layers.check, changes))

    def test_all_of_torch_in_one_header_is_found_everywhere(self):
        for path in ("driver/ranks/world.cc", "batching/prepare.cc", "tests/support/ranks.cc"):
            with self.subTest(path):
                self.assert_finds({path: '#include "torch/torch.h"\n'}, f"{path}:1", "torch/torch.h")

    def test_a_binding_outside_its_file_is_found(self):
        for path in ("driver/lua/bind/sharding/sharding.cc", "driver/lua/bind/program/core.h"):
            with self.subTest(path):
                self.assert_finds({path: '#include "batching/plan.h"\n'}, f"{path}:1", "driver/lua/bind/batching/")

    def test_a_room_that_includes_a_library_it_does_not_build_on_is_found(self):
        for path, header in (("driver/ranks/world.cc", "mimo/batch/ownership.h"), ("driver/files/files.cc", "sharding/guard.h"),
                             ("driver/lua/vm/vm.cc", "batching/plan.h"), ("driver/launch/rank.cc", "checkpoint/region.h")):
            self.assert_finds({path: f'#include "{header}"\n'}, f"includes {header}; only driver/lua/bind/")

    def test_the_runtime_builds_on_sharding(self):
        changes = {"driver/ranks/world.cc": '#include "sharding/guard.h"\n', "driver/graph/graph_test.cc": '#include "kernels/rows.h"\n'}
        self.assertEqual([], fixture.problems(layers.check, changes))

    def test_a_binding_in_several_files_is_fine(self):
        changes = {"driver/lua/bind/batching/plan.cc": '#include "batching/plan.h"\n'}

        self.assertEqual([], fixture.problems(layers.check, changes))

    def test_a_binding_that_calls_the_store_or_locks_a_file_is_found(self):
        for call in ('world.store->set("key", value);', "flock(fd, LOCK_EX);",
                     "group.process_group->recv(tensors, 1, 0)->wait();"):
            with self.subTest(call):
                self.assert_finds({"driver/lua/bind/program/core.cc": f"int Run() {{\n  {call}\n}}\n"},
                                  "driver/lua/bind/program/core.cc:2", "more than a translation")

    def test_a_script_that_depends_on_more_than_the_driver_is_found(self):
        for label in ("//batching", "@luajit"):
            with self.subTest(label):
                self.assert_finds(
                    fixture.build("scripts/BUILD", "//driver:lockstep", label), "scripts/BUILD:1", label)

    def test_a_model_that_is_not_lua_is_found(self):
        for path in ("scripts/model.cc", "driver/lualib/lockstep/schedule.h"):
            with self.subTest(path):
                self.assert_finds({path: "// A model.\n"}, path, "holds Lua")

    def test_a_script_that_requires_a_private_module_is_found(self):
        for require in ('require "lockstep.core.files"', "require('lockstep.core')"):
            with self.subTest(require):
                self.assert_finds({"scripts/a.lua": f"print(1)\nlocal files = {require}\n"}, "scripts/a.lua:2", "is private")

    def test_a_room_that_includes_one_above_it_is_found(self):
        for path, header in (("driver/files/files.cc", "driver/ranks/world.h"), ("driver/ranks/world.cc", "driver/lua/vm/vm.h"),
                             ("driver/ranks/circle.cc", "driver/launch/launcher.h")):
            with self.subTest(path):
                self.assert_finds({path: f'#include "{header}"\n'}, f"{path}:1: includes {header}", "on a floor below")

    def test_a_room_may_include_those_below_it(self):
        changes = {"driver/main.cc": '#include "driver/launch/rank.h"\n',
                   "driver/launch/rank.h": '#include "driver/lua/vm/vm.h"\n',
                   "driver/lua/vm/vm.h": '#include "driver/ranks/world.h"\n#include "driver/files/files.h"\n'}

        self.assertEqual([], fixture.problems(layers.check, changes))

    def test_a_circle_of_folders_is_found(self):
        self.assert_finds({"driver/text/model/bpe.h": '#include "driver/text/node.h"\n',
                           "driver/text/text.cc": '#include "driver/text/unicode/tables.h"\n',
                           "driver/text/unicode/tables.h": '#include "driver/text/model/bpe.h"\n'},
                          "driver/text/model/bpe.h:1: closes a circle of folders: driver/text -> driver/text/unicode -> "
                          "driver/text/model -> driver/text")

    def test_a_room_without_a_floor_is_found(self):
        self.assert_finds({"driver/attic/attic.cc": "// Nothing.\n"}, "driver/attic/attic.cc: the room driver/attic has no floor")


if __name__ == "__main__":
    unittest.main()
