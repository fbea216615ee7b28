"""`program_test`: tests that start the real program, from a file of GoogleTest."""

def program_test(name, size = "medium", data = [], deps = [], **kwargs):
    """A cc_test of `<name>.cc` that may start //driver:lockstep, on any number of ranks.

    Args:
      name: the target's name.
      size: as for every test.
      data: files that the tests read, in addition to the program.
      deps: libraries, in addition to those of tests/support.
      **kwargs: passed on to cc_test.
    """
    native.cc_test(
        name = name,
        size = size,
        srcs = [name + ".cc"],
        data = data + ["//driver:lockstep"],
        deps = deps + [
            "//base:deadline",
            "//tests/support:program",
            "//tests/support:rank_script",
            "//tests/support:ranks",
            "@com_google_absl//absl/strings",
            "@com_google_absl//absl/time",
            "@com_google_googletest//:gtest_main",
        ],
        **kwargs
    )
