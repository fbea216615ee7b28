"""`public_library`: what another workspace depends on, with the project's name before each header.

    public_library(name = "batching", deps = [":plan"])

A target that depends on @lockstep//batching includes "lockstep/batching/plan.h". The prefix avoids a clash with a
folder `batching` of the other workspace. Inside this workspace the path has no prefix: "batching/plan.h".
"""

_PREFIX = "lockstep"

def _public_library_impl(ctx):
    libraries = cc_common.merge_cc_infos(cc_infos = [dep[CcInfo] for dep in ctx.attr.deps])
    folder = ctx.label.name + "_include"
    headers = []
    for header in libraries.compilation_context.headers.to_list():
        if header.owner.workspace_name != ctx.label.workspace_name:
            continue
        path = header.short_path
        if path.startswith("../"):
            path = path.split("/", 2)[2]
        if not path.endswith(".h") or "_include/" in path:
            continue
        link = ctx.actions.declare_file("%s/%s/%s" % (folder, _PREFIX, path))
        ctx.actions.symlink(output = link, target_file = header)
        headers.append(link)
    root = "/".join([part for part in [ctx.bin_dir.path, ctx.label.workspace_root, ctx.label.package, folder] if part])
    prefixed = CcInfo(compilation_context = cc_common.create_compilation_context(
        headers = depset(headers),
        quote_includes = depset([root]),
    ))
    return [
        DefaultInfo(files = depset(transitive = [dep[DefaultInfo].files for dep in ctx.attr.deps])),
        cc_common.merge_cc_infos(cc_infos = [prefixed, libraries]),
    ]

public_library = rule(
    implementation = _public_library_impl,
    attrs = {"deps": attr.label_list(providers = [CcInfo])},
    provides = [CcInfo],
)
