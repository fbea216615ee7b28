"""`cc_library`, `cc_binary` and `cc_test` that read libtorch's large headers once, precompiled.

    load("//base/torch:precompiled.bzl", "cc_library", "cc_test")

A source that uses libtorch compiles in 9 to 21 s. Of these, 6 to 12 s go to the headers of autograd, the dispatcher and
c10d. A rule with "@libtorch" among its `deps` gets `-include base/torch/precompiled.h`, which gcc finds compiled. With
other options for code generation gcc reads the header as text; clang reads an empty one. So each source must include
all that it needs, as if this header did not exist.
"""

load("@bazel_tools//tools/build_defs/cc:action_names.bzl", "CPP_COMPILE_ACTION_NAME")
load("@bazel_tools//tools/cpp:toolchain_utils.bzl", "find_cpp_toolchain")

_HEADER = "base/torch/precompiled.h"

# gcc 12 forgets that a precompiled header is a system's, and shows its known false warnings of std::string.
_FALSE_WARNINGS = [
    "-Wno-array-bounds",
    "-Wno-restrict",
    "-Wno-stringop-overflow",
    "-Wno-stringop-overread",
]

def _header_at(root, files):
    return CcInfo(compilation_context = cc_common.create_compilation_context(
        headers = depset(files),
        quote_includes = depset([root]),
    ))

def _precompiled_header_impl(ctx):
    toolchain = find_cpp_toolchain(ctx)
    features = cc_common.configure_features(
        ctx = ctx,
        cc_toolchain = toolchain,
        requested_features = ctx.features,
        unsupported_features = ctx.disabled_features,
    )
    header = ctx.actions.declare_file(ctx.attr.out)
    ctx.actions.symlink(output = header, target_file = ctx.file.src)
    root = header.path[:-len(_HEADER) - 1]
    if "clang" in toolchain.compiler:
        return [_header_at(root, [header])]
    compiled = ctx.actions.declare_file(ctx.attr.out + ".gch")
    context = cc_common.merge_cc_infos(cc_infos = [dep[CcInfo] for dep in ctx.attr.deps]).compilation_context
    variables = cc_common.create_compile_variables(
        feature_configuration = features,
        cc_toolchain = toolchain,
        source_file = header.path,
        output_file = compiled.path,
        user_compile_flags = ctx.fragments.cpp.copts + ctx.fragments.cpp.cxxopts + ["-x", "c++-header"],
        include_directories = context.includes,
        quote_include_directories = context.quote_includes,
        system_include_directories = context.system_includes,
        preprocessor_defines = context.defines,
        use_pic = ctx.attr.force_pic or ctx.var["COMPILATION_MODE"] != "opt",
    )
    ctx.actions.run(
        executable = cc_common.get_tool_for_action(
            feature_configuration = features,
            action_name = CPP_COMPILE_ACTION_NAME,
        ),
        arguments = cc_common.get_memory_inefficient_command_line(
            feature_configuration = features,
            action_name = CPP_COMPILE_ACTION_NAME,
            variables = variables,
        ),
        env = cc_common.get_environment_variables(
            feature_configuration = features,
            action_name = CPP_COMPILE_ACTION_NAME,
            variables = variables,
        ),
        inputs = depset([header, ctx.file.src], transitive = [context.headers, toolchain.all_files]),
        outputs = [compiled],
        mnemonic = "CppPrecompile",
        progress_message = "Precompiling libtorch's headers",
    )
    return [_header_at(root, [header, compiled])]

precompiled_header = rule(
    implementation = _precompiled_header_impl,
    attrs = {
        "src": attr.label(allow_single_file = True, mandatory = True),
        "out": attr.string(mandatory = True),
        "deps": attr.label_list(providers = [CcInfo]),
        "force_pic": attr.bool(),
        "_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
    },
    fragments = ["cpp"],
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
)

def _with_header(attributes):
    # str: a list that a select extends cannot be searched.
    if '"@libtorch"' in str(attributes.get("deps", [])):
        attributes = dict(attributes)
        attributes["deps"] = attributes["deps"] + [Label("//base/torch:precompiled")]
        attributes["copts"] = attributes.get("copts", []) + ["-include", _HEADER] + select({
            str(Label("//base/torch:clang")): [],
            "//conditions:default": _FALSE_WARNINGS,
        })
    return attributes

def cc_library(**attributes):
    native.cc_library(**(_with_header(attributes) if attributes.get("srcs") else attributes))

def cc_binary(**attributes):
    native.cc_binary(**_with_header(attributes))

def cc_test(**attributes):
    native.cc_test(**_with_header(attributes))
