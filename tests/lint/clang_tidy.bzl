"""`clang_tidy_headers`: what clang-tidy finds in the workspace's headers, and which of them it has read.

clang-tidy spends its time in the headers of libtorch and of the standard library: 6 to 30 s for each source. So one
action reads a source that includes every header of ours, in about 50 s. Bazel runs it again when a header changes.
"""

_Compilations = provider(fields = {"all": "depset of CcInfo: of a target and of what it depends on"})

def _compilations_impl(target, ctx):
    deps = [dep for attribute in ("deps", "srcs", "data") for dep in getattr(ctx.rule.attr, attribute, [])]
    return [_Compilations(all = depset(
        [target[CcInfo]] if CcInfo in target else [],
        transitive = [dep[_Compilations].all for dep in deps if _Compilations in dep],
    ))]

# Visibility does not bind an aspect: it sees the private headers of every library below a program.
_compilations = aspect(implementation = _compilations_impl, attr_aspects = ["deps", "srcs", "data"])

def _clang_tidy_headers_impl(ctx):
    found = depset(transitive = [target[_Compilations].all for target in ctx.attr.targets]).to_list()
    context = cc_common.merge_cc_infos(cc_infos = found).compilation_context
    # What gcc has precompiled is of no use to clang.
    inputs = [header for header in context.headers.to_list() if header.extension != "gch"]
    headers = sorted([
        header.path
        for header in inputs
        if header.is_source and header.extension == "h" and not header.owner.workspace_name
    ])
    source = ctx.actions.declare_file(ctx.label.name + ".cc")
    ctx.actions.write(source, "".join(["#include \"%s\"\n" % header for header in headers]))

    report = ctx.actions.declare_file(ctx.label.name + ".txt")
    flags = ctx.actions.args()
    flags.add_all([report, source])
    flags.add_all(ctx.fragments.cpp.cxxopts)
    flags.add_all(context.defines, format_each = "-D%s")
    flags.add_all(context.quote_includes, before_each = "-iquote")
    flags.add_all(depset(transitive = [context.includes, context.system_includes]), before_each = "-isystem")
    ctx.actions.run(
        executable = ctx.executable._clang_tidy,
        arguments = [flags],
        inputs = inputs + [source, ctx.file._config],
        outputs = [report],
        mnemonic = "ClangTidy",
        progress_message = "Reading %d headers with clang-tidy" % len(headers),
        use_default_shell_env = True,
    )
    return [DefaultInfo(runfiles = ctx.runfiles([source, report]))]

clang_tidy_headers = rule(
    doc = "Writes <name>.cc, which includes the headers, and <name>.txt, which is empty if they have no fault.",
    implementation = _clang_tidy_headers_impl,
    attrs = {
        "targets": attr.label_list(aspects = [_compilations], doc = "whose headers, and those of what they depend on"),
        "_clang_tidy": attr.label(default = "//tests/lint:clang_tidy.sh", allow_single_file = True, executable = True, cfg = "exec"),
        "_config": attr.label(default = "//:.clang-tidy", allow_single_file = True),
    },
    fragments = ["cpp"],
)
