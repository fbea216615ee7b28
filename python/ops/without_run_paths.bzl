"""`without_run_paths`: libraries to link into a shared library that is loaded into somebody else's process.

That process has libtorch already, wherever it lies, so the folder of this machine's copy is no run-time path. Nor can a
shared library hold Debian's archives of Abseil: it takes SHARED_ABSL (third_party/absl/absl.bzl).
"""

def _flags_of(linker_input):
    if "com_google_absl" in str(linker_input.owner):
        return []
    return [flag for flag in linker_input.user_link_flags if not flag.startswith("-Wl,-rpath")]

def _without_run_paths_impl(ctx):
    merged = cc_common.merge_cc_infos(cc_infos = [dep[CcInfo] for dep in ctx.attr.deps])
    inputs = [
        cc_common.create_linker_input(
            owner = linker_input.owner,
            libraries = depset(linker_input.libraries),
            user_link_flags = depset(_flags_of(linker_input)),
            additional_inputs = depset(linker_input.additional_inputs),
        )
        for linker_input in merged.linking_context.linker_inputs.to_list()
    ]
    return [CcInfo(
        compilation_context = merged.compilation_context,
        linking_context = cc_common.create_linking_context(linker_inputs = depset(inputs, order = "topological")),
    )]

without_run_paths = rule(
    implementation = _without_run_paths_impl,
    attrs = {"deps": attr.label_list(providers = [CcInfo])},
    provides = [CcInfo],
)
