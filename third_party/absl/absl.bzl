"""Abseil from Debian's libabsl-dev, under upstream's labels.

Every target carries its headers through the system's include path and the same group of static
archives; the linker takes from the group what is used, so binaries carry their Abseil along.
A workspace that declares its own `@com_google_absl` first gets that one in place of this.

The archives are no position-independent code, so no shared library can hold them. One takes Debian's shared libraries:
`linkopts = SHARED_ABSL` of @com_google_absl//:shared.bzl, which come before the archives.
"""

load("//third_party:system.bzl", "require_path")

# The labels that our BUILD files name: package -> targets.
_TARGETS = {
    "base": ["core_headers"],
    "container": ["flat_hash_map", "flat_hash_set", "inlined_vector"],
    "functional": ["function_ref"],
    "hash": ["hash"],
    "memory": ["memory"],
    "random": ["random", "distributions"],
    "status": ["status", "statusor"],
    "strings": ["strings", "str_format"],
    "synchronization": ["synchronization"],
    "time": ["time"],
    "types": ["span"],
}

def _absl_configure_impl(ctx):
    libraries = "/usr/lib/x86_64-linux-gnu"
    require_path(ctx, "/usr/include/absl", "libabsl-dev")
    require_path(ctx, libraries + "/libabsl_status.a", "libabsl-dev")
    archives = sorted([str(f) for f in ctx.path(libraries).readdir() if f.basename.startswith("libabsl_") and f.basename.endswith(".a")])
    ctx.file("BUILD", """
package(default_visibility = ["//visibility:public"])

cc_library(
    name = "archives",
    linkopts = ["-Wl,--start-group"] + %r + ["-Wl,--end-group", "-lpthread"],
)
""" % archives)
    ctx.file("shared.bzl", "SHARED_ABSL = %r\n" % (
        ["-Wl,--push-state,--as-needed"] + [archive[:-2] + ".so" for archive in archives] + ["-Wl,--pop-state"]
    ))
    for package, targets in _TARGETS.items():
        ctx.file("absl/%s/BUILD" % package, """
package(default_visibility = ["//visibility:public"])

""" + "\n".join(["cc_library(name = %r, deps = [\"//:archives\"])" % target for target in targets]) + "\n")

absl_configure = repository_rule(
    implementation = _absl_configure_impl,
    local = True,
)
