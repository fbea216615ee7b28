"""`consumer_test`: programs in a workspace of their own, which take one library of this one each."""

def consumer_test(name, folders, size, modules = False):
    """Builds and runs the programs of some folders: see consumer_test.sh.

    Args:
      name: the target's name.
      folders: libraries; or "<library>_torch", for their targets on libtorch, all of them.
      size: as for every test.
      modules: True names this workspace in a MODULE.bazel, and not in a WORKSPACE.
    """
    native.sh_test(
        name = name,
        size = size,
        srcs = ["consumer_test.sh"],
        args = ["modules" if modules else "workspace"] + folders,
        data = native.glob([folder + "/*" for folder in folders]) + [
            "MODULE.consumer",
            "WORKSPACE.consumer",
        ] + [
            "//%s:%s" % (folder.replace("_torch", ""), "torch" if folder.endswith("_torch") else folder)
            for folder in folders
        ],
    )
