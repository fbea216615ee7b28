"""libtorch as a Bazel repository: 2.11, which is pinned, or a later version up to NEWEST.

The environment variable LIBTORCH names an installed one: a folder that holds `include/ATen` and
`lib/libtorch_cpu.so`, or one that holds such a folder as `torch` (a site-packages). third_party/setup
fetches the pinned wheels and writes their place to .bazelrc.setup as `--repo_env=LIBTORCH=...`.

Targets:
  @libtorch//:libtorch       the CPU flavour: torch_cpu and c10
  @libtorch//:libtorch_cuda  that, with torch_cuda and c10_cuda, CUDA's and NCCL's headers
  @libtorch//:version        a file that holds its version, "2.11.0"
"""

# The versions that Lockstep builds with; base/torch/versions holds what differs. third_party/setup reads these lines.
OLDEST = "2.11"
NEWEST = "2.15"

_BUILD = """
package(default_visibility = ["//visibility:public"])

exports_files(["version"])

cc_library(
    name = "libtorch",
    hdrs = glob(["include/**/*.h", "include/**/*.hpp", "include/**/*.cuh"]),
    includes = ["include", "include/torch/csrc/api/include"],
    linkopts = [
        "-L{lib}",
        "-Wl,-rpath,{lib}",
        # Nothing refers to the kernels by name: without this the linker drops the libraries.
        "-Wl,--push-state,--no-as-needed",
        "-ltorch_cpu",
        "-lc10",
        "-Wl,--pop-state",
    ],
)

cc_library(
    name = "libtorch_cuda",
    hdrs = glob(["cuda_include/**", "nccl_include/**"], allow_empty = True),
    defines = ["USE_C10D_NCCL"],
    includes = ["cuda_include", "nccl_include"],
    linkopts = [
        "-Wl,--push-state,--no-as-needed",
        "-ltorch_cuda",
        "-lc10_cuda",
        "-Wl,--pop-state",
        "-Wl,-rpath-link,{nvidia}/cu13/lib:{nvidia}/cudnn/lib:{nvidia}/nccl/lib:{nvidia}/cusparselt/lib:{nvidia}/nvshmem/lib",
        "-L{nvidia}/cu13/lib",
        "-Wl,-rpath,{nvidia}/cu13/lib",
        "-l:libcudart.so.13",
    ],
    deps = [":libtorch"],
)
"""

def _version_of(ctx, root):
    """Returns [major, minor, patch], or [] where no header tells them. Before 2.10 another header did."""
    for header in ["torch/headeronly/version.h", "torch/csrc/api/include/torch/version.h"]:
        path = ctx.path(root + "/include/" + header)
        if path.exists and "#define TORCH_VERSION_MAJOR " in ctx.read(path):
            return [
                int(ctx.read(path).split("#define TORCH_VERSION_%s " % number)[1].split("\n")[0])
                for number in ["MAJOR", "MINOR", "PATCH"]
            ]
    return []

def _libtorch_configure_impl(ctx):
    given = ctx.os.environ.get("LIBTORCH", "")
    if not given:
        fail("@libtorch: LIBTORCH is not set; run ./test once, which fetches libtorch 2.11, or pass --repo_env=LIBTORCH=/path/to/site-packages.")
    root = given if ctx.path(given + "/include/ATen").exists else given + "/torch"
    for needed in ["include/ATen/ATen.h", "lib/libtorch_cpu.so"]:
        if not ctx.path(root + "/" + needed).exists:
            fail("@libtorch: LIBTORCH=%s holds neither %s nor torch/%s; name the folder of a PyTorch %s to %s install, or unset it and run ./test, which fetches %s." %
                 (given, needed, needed, OLDEST, NEWEST, OLDEST))
    version = _version_of(ctx, root)
    if not [int(n) for n in OLDEST.split(".")] <= version[:2] or not version[:2] <= [int(n) for n in NEWEST.split(".")]:
        fail("@libtorch: LIBTORCH=%s is torch %s, and Lockstep builds with torch %s to %s: name another one, or unset it and run ./test, which fetches %s." %
             (given, ".".join([str(n) for n in version]) or "of an unknown version", OLDEST, NEWEST, OLDEST))
    ctx.file("version", ".".join([str(n) for n in version]) + "\n")

    # Only these: the wheel's root carries BUILD files of its own.
    ctx.symlink(root + "/include", "include")
    nvidia = str(ctx.path(root + "/..")) + "/nvidia"
    if ctx.path(nvidia + "/cu13/include").exists:
        ctx.symlink(nvidia + "/cu13/include", "cuda_include")
        ctx.symlink(nvidia + "/nccl/include", "nccl_include")
    ctx.file("BUILD", _BUILD.replace("{lib}", root + "/lib").replace("{nvidia}", nvidia))

libtorch_configure = repository_rule(
    implementation = _libtorch_configure_impl,
    environ = ["LIBTORCH"],
    local = True,
)
