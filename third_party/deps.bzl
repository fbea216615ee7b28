"""Every repository that Lockstep needs.

Another workspace calls `lockstep_dependencies()` after it has declared its own copies: a name
that exists already is left alone, so `@com_google_absl` or `@libtorch` can be yours. Repositories
are fetched only when a target needs them: a build that takes `@lockstep//batching` never looks
for libtorch. MODULE.bazel takes the same from extensions.bzl.
"""

load("//third_party/absl:absl.bzl", "absl_configure")
load("//third_party/cuda:configure.bzl", "cuda_configure")
load("//third_party/libarrow:libarrow.bzl", "libarrow_configure")
load("//third_party/libtorch:libtorch.bzl", "libtorch_configure")
load("//third_party/luajit:luajit.bzl", "luajit_configure")
load("//third_party:system.bzl", "system_library")

# Debian's packages: name of the repository -> package, BUILD file, links.
_SYSTEM = {
    "com_github_google_benchmark": (
        "libbenchmark-dev",
        "benchmark/benchmark.BUILD",
        {"include/benchmark": "/usr/include/benchmark"},
    ),
    "com_google_googletest": (
        "googletest",
        "googletest/googletest.BUILD",
        {"googlemock": "/usr/src/googletest/googlemock", "googletest": "/usr/src/googletest/googletest"},
    ),
    "libdeflate": (
        "libdeflate-dev",
        "libdeflate/libdeflate.BUILD",
        {"include/libdeflate.h": "/usr/include/libdeflate.h"},
    ),
    "libedit": (
        "libedit-dev",
        "libedit/libedit.BUILD",
        {"include/editline": "/usr/include/editline"},
    ),
    "libjpeg": (
        "libjpeg62-turbo-dev",
        "libjpeg/libjpeg.BUILD",
        {
            "include/jconfig.h": "/usr/include/x86_64-linux-gnu/jconfig.h",
            "include/jerror.h": "/usr/include/jerror.h",
            "include/jmorecfg.h": "/usr/include/jmorecfg.h",
            "include/jpeglib.h": "/usr/include/jpeglib.h",
        },
    ),
    "libspng": (
        "libspng-dev",
        "libspng/libspng.BUILD",
        {
            "include/spng.h": "/usr/include/spng.h",
            "lib/libspng.so.0": "/usr/lib/x86_64-linux-gnu/libspng.so.0",
        },
    ),
    "onig": (
        "libonig-dev",
        "onig/onig.BUILD",
        {
            "include/oniguruma.h": "/usr/include/oniguruma.h",
            "lib/libonig.so.5": "/usr/lib/x86_64-linux-gnu/libonig.so.5",
        },
    ),
    "libwebp": (
        "libwebp-dev",
        "libwebp/libwebp.BUILD",
        {"include/webp": "/usr/include/webp"},
    ),
    "nlohmann_json": (
        "nlohmann-json3-dev",
        "nlohmann_json/nlohmann_json.BUILD",
        {"include/nlohmann": "/usr/include/nlohmann"},
    ),
    "tcmalloc": (
        "libgoogle-perftools-dev",
        "tcmalloc/tcmalloc.BUILD",
        {"include/gperftools": "/usr/include/gperftools"},
    ),
    "zlib": (
        "zlib1g-dev",
        "zlib/zlib.BUILD",
        {"include/zconf.h": "/usr/include/zconf.h", "include/zlib.h": "/usr/include/zlib.h"},
    ),
}

_CONFIGURED = {
    "com_google_absl": absl_configure,
    "cuda": cuda_configure,
    "libarrow": libarrow_configure,
    "libtorch": libtorch_configure,
    "luajit": luajit_configure,
}

def lockstep_repositories(existing):
    """Declares all but those whose names are in `existing`."""
    for name, configure in _CONFIGURED.items():
        if name not in existing:
            configure(name = name)
    for name, (package, build_file, symlinks) in _SYSTEM.items():
        if name not in existing:
            folder, file = build_file.split("/")
            system_library(
                name = name,
                build_file = "@lockstep//third_party/%s:%s" % (folder, file),
                package = package,
                symlinks = symlinks,
            )

def lockstep_dependencies():
    lockstep_repositories(existing = native.existing_rules())
