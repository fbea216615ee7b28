"""A library that the system's package manager installed, as a Bazel repository."""

def require_path(ctx, path, package):
    """Fails with one sentence, and the command that mends it, where `path` does not exist."""
    if not ctx.path(path).exists:
        fail("@%s: %s is missing; mend it with `apt-get install %s`, or run ./test, which does." %
             (ctx.name, path, package))

def _system_library_impl(ctx):
    for link, target in ctx.attr.symlinks.items():
        require_path(ctx, target, ctx.attr.package)
        ctx.symlink(target, link)
    ctx.symlink(ctx.attr.build_file, "BUILD")

system_library = repository_rule(
    doc = "Symlinks files of the Debian package `package` beside `build_file`.",
    implementation = _system_library_impl,
    local = True,
    attrs = {
        "build_file": attr.label(mandatory = True, allow_single_file = True),
        "package": attr.string(mandatory = True, doc = "the Debian package that provides the files"),
        "symlinks": attr.string_dict(mandatory = True, doc = "path in the repository: path on the system"),
    },
)
