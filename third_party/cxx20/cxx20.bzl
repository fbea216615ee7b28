"""`require_cxx20`: one line for a build that is not C++20.

    load("//third_party/cxx20:cxx20.bzl", "require_cxx20")
    require_cxx20(name = "cxx20")
    cc_library(name = "plan", deps = ["//third_party/cxx20"], ...)

Compiled as C++17 our headers give a page of errors, none of which names the cause. This rule reads the options with
which the toolchain would compile C++, and fails before anything is compiled. Options without a standard are the
compiler's to judge. --per_file_copt is not seen here; --define=lockstep_cxx20=unchecked is for builds that rely on it.
"""

load("@bazel_tools//tools/build_defs/cc:action_names.bzl", "CPP_COMPILE_ACTION_NAME")
load("@bazel_tools//tools/cpp:toolchain_utils.bzl", "find_cpp_toolchain")

_OLDER = ["98", "03", "0x", "11", "1y", "14", "1z", "17"]

def _standard(ctx):
    """The last -std= of a C++ compilation, which is the one that counts; None where there is none."""
    toolchain = find_cpp_toolchain(ctx)
    features = cc_common.configure_features(
        ctx = ctx,
        cc_toolchain = toolchain,
        requested_features = ctx.features,
        unsupported_features = ctx.disabled_features,
    )
    options = cc_common.get_memory_inefficient_command_line(
        feature_configuration = features,
        action_name = CPP_COMPILE_ACTION_NAME,
        variables = cc_common.create_compile_variables(
            feature_configuration = features,
            cc_toolchain = toolchain,
            user_compile_flags = ctx.fragments.cpp.copts + ctx.fragments.cpp.cxxopts,
        ),
    )
    standards = [option[len("-std="):] for option in options if option.startswith("-std=")]
    return standards[-1] if standards else None

def _require_cxx20_impl(ctx):
    standard = _standard(ctx)
    is_older = standard in ["c++" + year for year in _OLDER] + ["gnu++" + year for year in _OLDER]
    if is_older and ctx.var.get("lockstep_cxx20") != "unchecked":
        fail("Lockstep is C++20, and this build is -std=%s: add --cxxopt=-std=c++20 to the command or to .bazelrc" % standard)
    return [CcInfo()]

require_cxx20 = rule(
    implementation = _require_cxx20_impl,
    attrs = {"_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain")},
    fragments = ["cpp"],
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
)
