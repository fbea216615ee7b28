"""`consumer_test`: a program in a workspace of its own, which takes one library of this one."""

def consumer_test(name, folder, modules = False):
    """Builds and runs the program of a folder: see consumer_test.sh.

    Args:
      name: the target's name.
      folder: the library, or "<library>_torch" for its targets on libtorch.
      modules: True names this workspace in a MODULE.bazel, and not in a WORKSPACE.
    """
    library = folder.replace("_torch", "")
    target = "torch" if folder.endswith("_torch") else library
    native.sh_test(
        name = name,
        # On libtorch every file of the library is compiled anew, once: minutes.
        size = "enormous" if target == "torch" else "large",
        srcs = ["consumer_test.sh"],
        args = [folder] + (["modules"] if modules else []),
        data = native.glob([folder + "/*"]) + [
            "MODULE.consumer",
            "WORKSPACE.consumer",
            "//%s:%s" % (library, target),
        ],
    )
