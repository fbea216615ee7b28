"""`python_test`: a file of Python's unittest, run with the package `lockstep` of this build."""

def python_test(name, size, data = [], torch = False, **kwargs):
    """Runs NAME.py.

    Args:
      name: the file without .py.
      size: as of any test.
      data: files that the test reads.
      torch: whether it imports torch. It is then the torch that the build uses.
      **kwargs: as of any test.
    """
    native.sh_test(
        name = name,
        size = size,
        srcs = ["//python/tests:run_test.sh"],
        args = [name],
        data = [
            name + ".py",
            "//python/lockstep",
            "//tests/lint:unittest_xml.py",
        ] + (["@libtorch//:python_path"] if torch else []) + data,
        **kwargs
    )
