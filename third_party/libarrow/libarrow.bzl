"""Apache Arrow's C++ library with Parquet, from a pyarrow wheel, as an optional Bazel repository.

The environment variable LIBARROW names a folder that holds `pyarrow`, with its include/ and
libparquet.so.*. third_party/setup fetches the pinned wheel and writes its place to .bazelrc.setup as
`--repo_env=LIBARROW=...`. Without it nothing fails: the program reads no Parquet, and says so.

`@libarrow//:defs.bzl` holds LIBARROW, a list of the one target @libarrow//:libarrow, or of none:

    [cc_test(name = "x_test", ..., deps = [arrow]) for arrow in LIBARROW]
"""

_BUILD = """
cc_library(
    name = "libarrow",
    hdrs = glob(["include/**/*.h"]),
    includes = ["include"],
    linkopts = [
        "-L{root}",
        "-Wl,-rpath,{root}",
        "-l:libparquet.so.{version}",
        "-l:libarrow.so.{version}",
    ],
    visibility = ["//visibility:public"],
)
"""

def _libarrow_configure_impl(ctx):
    given = ctx.os.environ.get("LIBARROW", "")
    ctx.file("defs.bzl", "LIBARROW = %s\n" % (["@libarrow//:libarrow"] if given else []))
    if not given:
        ctx.file("BUILD", "")
        return
    root = given + "/pyarrow"
    config = ctx.path(root + "/include/arrow/util/config.h")
    if not config.exists:
        fail("@libarrow: LIBARROW=%s does not hold pyarrow/include/arrow; name the folder of a pyarrow wheel, or set it to nothing to build without Parquet." % given)
    version = ctx.read(config).split("#define ARROW_SO_VERSION \"")[1].split("\"")[0]
    ctx.symlink(root + "/include", "include")
    ctx.file("BUILD", _BUILD.replace("{root}", root).replace("{version}", version))

libarrow_configure = repository_rule(
    implementation = _libarrow_configure_impl,
    environ = ["LIBARROW"],
    local = True,
)
