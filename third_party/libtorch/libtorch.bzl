"""libtorch 2.11 as a Bazel repository.

The environment variable LIBTORCH names an installed one: a folder that holds `include/ATen` and
`lib/libtorch_cpu.so`, or one that holds such a folder as `torch` (a site-packages). third_party/setup
fetches the pinned wheels and writes their place to .bazelrc.setup as `--repo_env=LIBTORCH=...`.

Targets:
  @libtorch//:libtorch       the CPU flavour: torch_cpu and c10
  @libtorch//:python_path    a file that holds the folder from which Python imports this torch
  @libtorch//:libtorch_cuda  that, with torch_cuda and c10_cuda, CUDA's and NCCL's headers
"""

_BUILD = """
package(default_visibility = ["//visibility:public"])

# Holds the folder from which Python imports this torch.
exports_files(["python_path"])

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

def _libtorch_configure_impl(ctx):
    given = ctx.os.environ.get("LIBTORCH", "")
    if not given:
        fail("@libtorch: LIBTORCH is not set; run ./test once, which fetches libtorch 2.11, or pass --repo_env=LIBTORCH=/path/to/site-packages.")
    root = given if ctx.path(given + "/include/ATen").exists else given + "/torch"
    for needed in ["include/ATen/ATen.h", "lib/libtorch_cpu.so"]:
        if not ctx.path(root + "/" + needed).exists:
            fail("@libtorch: LIBTORCH=%s holds neither %s nor torch/%s; name the folder of a PyTorch 2.11 install, or unset it and run ./test, which fetches one." %
                 (given, needed, needed))

    # Only these: the wheel's root carries BUILD files of its own.
    ctx.symlink(root + "/include", "include")
    nvidia = str(ctx.path(root + "/..")) + "/nvidia"
    if ctx.path(nvidia + "/cu13/include").exists:
        ctx.symlink(nvidia + "/cu13/include", "cuda_include")
        ctx.symlink(nvidia + "/nccl/include", "nccl_include")
    ctx.file("python_path", str(ctx.path(root + "/..")) + "\n")
    ctx.file("BUILD", _BUILD.replace("{lib}", root + "/lib").replace("{nvidia}", nvidia))

libtorch_configure = repository_rule(
    implementation = _libtorch_configure_impl,
    environ = ["LIBTORCH"],
    local = True,
)
