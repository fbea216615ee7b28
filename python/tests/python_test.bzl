"""`python_test`: a file of Python's unittest, run with the package `lockstep` of this build."""

def python_test(name, srcs, data = [], **kwargs):
    native.sh_test(
        name = name,
        srcs = ["//python/tests:run_test.sh"],
        args = ["python3", srcs[0][:-3]],
        data = srcs + ["//python/lockstep", "//tests/lint:unittest_xml.py"] + data,
        **kwargs
    )
