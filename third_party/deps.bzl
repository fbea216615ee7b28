"""Every repository that Lockstep needs.

Another workspace calls `lockstep_dependencies()` after it has declared its own copies: a name
that exists already is left alone, so `@com_google_absl` or `@libtorch` can be yours. Repositories
are fetched only when a target needs them: a build that takes `@lockstep//batching` never looks
for libtorch.
"""

load("//third_party/absl:absl.bzl", "absl_configure")
load("//third_party/cuda:configure.bzl", "cuda_configure")
load("//third_party/libtorch:libtorch.bzl", "libtorch_configure")
load("//third_party:system.bzl", "system_library")

def lockstep_dependencies():
    existing = native.existing_rules()

    if "com_google_absl" not in existing:
        absl_configure(name = "com_google_absl")

    if "com_google_googletest" not in existing:
        system_library(
            name = "com_google_googletest",
            build_file = "@lockstep//third_party/googletest:googletest.BUILD",
            package = "googletest",
            symlinks = {
                "googletest": "/usr/src/googletest/googletest",
                "googlemock": "/usr/src/googletest/googlemock",
            },
        )

    if "com_github_google_benchmark" not in existing:
        system_library(
            name = "com_github_google_benchmark",
            build_file = "@lockstep//third_party/benchmark:benchmark.BUILD",
            package = "libbenchmark-dev",
            symlinks = {"include/benchmark": "/usr/include/benchmark"},
        )

    if "luajit" not in existing:
        system_library(
            name = "luajit",
            build_file = "@lockstep//third_party/luajit:luajit.BUILD",
            package = "libluajit-5.1-dev",
            symlinks = {"include": "/usr/include/luajit-2.1"},
        )

    if "rapidjson" not in existing:
        system_library(
            name = "rapidjson",
            build_file = "@lockstep//third_party/rapidjson:rapidjson.BUILD",
            package = "rapidjson-dev",
            symlinks = {"include/rapidjson": "/usr/include/rapidjson"},
        )

    if "tcmalloc" not in existing:
        system_library(
            name = "tcmalloc",
            build_file = "@lockstep//third_party/tcmalloc:tcmalloc.BUILD",
            package = "libgoogle-perftools-dev",
            symlinks = {"include/gperftools": "/usr/include/gperftools"},
        )

    if "zlib" not in existing:
        system_library(
            name = "zlib",
            build_file = "@lockstep//third_party/zlib:zlib.BUILD",
            package = "zlib1g-dev",
            symlinks = {"include/zlib.h": "/usr/include/zlib.h", "include/zconf.h": "/usr/include/zconf.h"},
        )

    if "libtorch" not in existing:
        libtorch_configure(name = "libtorch")

    if "cuda" not in existing:
        cuda_configure(name = "cuda")
