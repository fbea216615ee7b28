"""`lua_library`: a folder of the Lua library. `lua_test`: a file of Lua tests, run by the real program."""

def lua_library(name):
    """All Lua files of this folder but its tests and their fixtures; //driver/lualib:library lists it."""
    native.filegroup(
        name = name,
        srcs = native.glob(["*.lua"], exclude = ["*_test.lua", "*_fixture.lua"]),
    )

def lua_test(name, src = None, nproc = 1, data = [], size = "small", strict = True, **kwargs):
    """A test target for `src`, which adds tests with lockstep.testing.

    The program of //tests/strict fails where NCCL would hang or mix up data; it carries the data over Gloo. Two and
    three ranks run twice: `name` on Gloo alone, `<name>_strict` on that program. More run on that program only,
    since each of these tests takes a minute of processor time or so.

    Args:
      name: the target's name; `src` is `<name>.lua` unless given.
      src: the file of tests.
      nproc: ranks that run them, as processes of this machine.
      data: files that the tests read.
      size: as for every test.
      strict: False: on Gloo alone.
      **kwargs: passed on to sh_test.
    """
    src = src or name + ".lua"
    programs = {name: "tests/strict/lockstep" if strict and nproc > 3 else "driver/lockstep"}
    if strict and nproc in [2, 3]:
        programs[name + "_strict"] = "tests/strict/lockstep"
    for target, program in programs.items():
        native.sh_test(
            name = target,
            size = size,
            srcs = ["//driver/lualib:run_lua_test.sh"],
            args = [program, str(nproc), "$(location %s)" % src],
            data = data + [
                src,
                "//%s:%s" % tuple(program.rsplit("/", 1)),
                "//driver/lualib:run_test.lua",
            ],
            **kwargs
        )
