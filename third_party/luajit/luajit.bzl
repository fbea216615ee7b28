"""LuaJIT 2.1 as a Bazel repository.

The environment variable LUAJIT names a folder that holds `include/` and `lib/libluajit.a`. third_party/setup compiles the
pinned source there and writes the folder's place to .bazelrc.setup as `--repo_env=LUAJIT=...`.
"""

_BUILD = """
cc_library(
    name = "luajit",
    srcs = ["lib/libluajit.a"],
    hdrs = glob(["include/*.h", "include/*.hpp"]),
    includes = ["include"],
    linkopts = [
        "-lm",
        "-ldl",
    ],
    visibility = ["//visibility:public"],
)
"""

def _luajit_configure_impl(ctx):
    given = ctx.os.environ.get("LUAJIT", "")
    if not given:
        fail("@luajit: LUAJIT is not set; run ./test once, which fetches and compiles LuaJIT, or pass --repo_env=LUAJIT=/folder/with/include/and/lib.")
    for needed in ["include/lua.hpp", "lib/libluajit.a"]:
        if not ctx.path(given + "/" + needed).exists:
            fail("@luajit: LUAJIT=%s does not hold %s; unset it and run ./test, which fetches and compiles LuaJIT." % (given, needed))
    for folder in ["include", "lib"]:
        ctx.symlink(given + "/" + folder, folder)
    ctx.file("BUILD", _BUILD)

luajit_configure = repository_rule(
    implementation = _luajit_configure_impl,
    environ = ["LUAJIT"],
    local = True,
)
