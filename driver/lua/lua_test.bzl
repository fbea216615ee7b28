"""`lua_test`: a file of Lua tests, run by the real program on one or several ranks."""

def lua_test(name, src = None, nproc = 1, data = [], size = "small", **kwargs):
    """A test target for `src`, which adds tests with lockstep.testing.

    Args:
      name: the target's name; `src` is `<name>.lua` unless given.
      src: the file of tests.
      nproc: ranks that run them, as processes of this machine.
      data: files that the tests read.
      size: as for every test.
      **kwargs: passed on to sh_test.
    """
    src = src or name + ".lua"
    native.sh_test(
        name = name,
        size = size,
        srcs = ["//driver/lua:run_lua_test.sh"],
        args = [str(nproc), "$(location %s)" % src],
        data = data + [
            src,
            "//driver:lockstep",
            "//driver/lua:run_test.lua",
        ],
        **kwargs
    )
