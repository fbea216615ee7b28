"""Tests of the workspace's own files: of every one that is there, whether or not a target names it."""

# Bazel does not know what they read: they always run, and where the files are.
_TAGS = [
    "external",
    "local",
    "no-sandbox",
]

def lint_test(name, src = None, data = [], **kwargs):
    """A test that reads the workspace itself.

    Args:
      name: the target's name.
      src: a shell script; unless given, the tests are in `<name>.py`.
      data: files that Bazel makes for the test.
      **kwargs: passed on to sh_test.
    """
    native.sh_test(
        name = name,
        size = "small",
        srcs = [src or "python_test.sh"],
        args = [] if src else [name],
        data = data,
        tags = _TAGS,
        **kwargs
    )

def dependencies_of(libraries):
    """Lists all that the layers of libraries depend on, for transitive_test.

    Args:
      libraries: layers by library: {"batching": ["batching", "torch"]}.

    Returns:
      The labels of the lists.
    """
    lists = []
    for library, layers in libraries.items():
        for layer in layers:
            name = "deps_of_%s_%s" % (library, layer)
            target = "//%s:%s" % (library, layer)
            native.genquery(
                name = name,
                expression = "kind(rule, deps(%s))" % target,
                opts = ["--noimplicit_deps"],
                scope = [target],
            )
            lists.append(":" + name)
    return lists
