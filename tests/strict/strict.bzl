"""`strict_twin`: a test once more, on the backend that fails where NCCL would."""

def strict_twin(test, size = "medium", data = [], starts_program = False, **kwargs):
    """A test `<test>_strict`, which runs the program of the cc_test `test` on the strict backend.

    Nothing is compiled again. The test's own groups (tests/support/gloo_world.h) are on that backend,
    and what it starts with Lockstep() (tests/support/program.h) is //tests/strict:lockstep.

    Args:
      test: the name of the cc_test in this package.
      size: as for every test.
      starts_program: whether the test calls Lockstep().
      data: data of the test in addition to the program.
      **kwargs: passed on to sh_test.
    """
    native.sh_test(
        name = test + "_strict",
        size = size,
        srcs = ["//tests/strict:run_strict.sh"],
        args = ["$(location :%s)" % test],
        data = data + [":" + test] + (["//tests/strict:lockstep"] if starts_program else []),
        **kwargs
    )
