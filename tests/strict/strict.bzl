"""`strict_twin`: a test once more, on the backend that fails where NCCL would."""

def strict_twin(test, size = "medium", data = [], **kwargs):
    """A test `<test>_strict`, which runs the program of the cc_test `test` on the strict backend.

    Nothing is compiled again. What the test starts with Lockstep() (tests/support/program.h) is
    //tests/strict:lockstep.

    Args:
      test: the name of the cc_test in this package.
      size: as for every test.
      data: data of the test in addition to the program.
      **kwargs: passed on to sh_test.
    """
    native.sh_test(
        name = test + "_strict",
        size = size,
        srcs = ["//tests/strict:run_strict.sh"],
        args = ["$(location :%s)" % test],
        data = data + [
            ":" + test,
            "//tests/strict:lockstep",
        ],
        **kwargs
    )
