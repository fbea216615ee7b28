"""Compiles loops once for each instruction set, and runs tests on each of them."""

load("//base/torch:precompiled.bzl", "cc_library")

# ATen's name of each, and the compiler's options.
INSTRUCTION_SETS = [
    (
        "DEFAULT",
        [],
    ),
    (
        "AVX2",
        [
            "-mavx2",
            "-mfma",
            "-mf16c",
        ],
    ),
    (
        "AVX512",
        [
            "-mavx512f",
            "-mavx512bw",
            "-mavx512vl",
            "-mavx512dq",
            "-mfma",
            "-mf16c",
            # gcc 12 warns of its own header: avx512fintrin.h, "__Y is used uninitialized".
            "-Wno-uninitialized",
            "-Wno-maybe-uninitialized",
        ],
    ),
]

# Suffixes of test names, and variables. ATEN_CPU_CAPABILITY limits ATen's own kernels, MKL_ENABLE_INSTRUCTIONS its matrix
# products and functions.
_TEST_ENVIRONMENTS = [
    (
        "",
        {},
    ),
    (
        "_avx2",
        {
            "ATEN_CPU_CAPABILITY": "avx2",
            "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        },
    ),
    (
        "_default",
        {
            "ATEN_CPU_CAPABILITY": "default",
            "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
        },
    ),
]

def cc_library_of_instruction_sets(name, srcs, deps, copts = []):
    """Compiles a library for each instruction set, with the flags with which ATen compiles its own kernels.

    The libraries are NAME_default, NAME_avx2 and NAME_avx512; libraries_of(NAME) are those of the machine's architecture.
    capability_test checks that code for AVX-512 stays where a machine without it never gets to.
    """
    for capability, flags in INSTRUCTION_SETS:
        native.cc_library(
            name = name + "_" + capability.lower(),
            srcs = srcs,
            copts = ["-O3"] + flags + copts,
            local_defines = [
                "CPU_CAPABILITY=" + capability,
                "CPU_CAPABILITY_" + capability,
            ],
            deps = deps,
        )
    archives = []
    arguments = []
    for capability in ["AVX2", "AVX512"]:
        archive = "archive_" + capability.lower()
        native.filegroup(
            name = archive,
            testonly = True,
            srcs = [":" + name + "_" + capability.lower()],
            output_group = "archive",
        )
        archives.append(":" + archive)
        arguments += [capability, "$(location :%s)" % archive]
    native.sh_test(
        name = "capability_test",
        size = "small",
        srcs = ["//kernels:capability_test.sh"],
        args = arguments,
        data = archives,
        target_compatible_with = ["@platforms//cpu:x86_64"],
    )

def libraries_of(name):
    return select({
        "@platforms//cpu:x86_64": [
            ":%s_avx2" % name,
            ":%s_avx512" % name,
        ],
        "//conditions:default": [],
    }) + [":%s_default" % name]

def cc_test_of_instruction_sets(name, deps, size = "small", variants = {}):
    """Runs NAME.cc on each instruction set, as NAME, NAME_avx2 and NAME_default. The file is compiled once.

    Args:
      name: of the file and of the first test.
      deps: of the file.
      size: of each test.
      variants: further tests, suffix: (args, more deps), which are linked with more code.
    """
    cc_library(
        name = name + "_code",
        testonly = True,
        srcs = [name + ".cc"],
        deps = deps + ["@com_google_googletest//:gtest"],
        alwayslink = True,
    )
    tests = [(suffix, env, [], []) for suffix, env in _TEST_ENVIRONMENTS]
    tests += [(suffix, {}, args, more) for suffix, (args, more) in variants.items()]
    for suffix, env, args, more in tests:
        native.cc_test(
            name = name + suffix,
            size = size,
            args = args,
            env = env,
            deps = [":%s_code" % name, "@com_google_googletest//:gtest_main"] + more,
        )
