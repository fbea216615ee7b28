"""`cuda_on_cpu_library`: kernels for GPUs that g++ compiles for the emulator.

    load("//kernels/cuda/testing:on_cpu.bzl", "cuda_on_cpu_library")
    cuda_on_cpu_library(name = "rows_on_cpu", srcs = ["rows_on_cpu.cc"], textual_hdrs = ["rows_cuda.cu"])
"""

# The compiler calls a function before each load and store. The emulator has these functions, so nothing is linked.
_COPTS = [
    "-O2",
    "-fsanitize=thread",
    "-fsanitize=alignment,bounds",
    # A load of 16 bytes stays one load.
    "-fno-tree-sra",
    # For nvcc: unroll.
    "-Wno-unknown-pragmas",
    "--param=tsan-instrument-func-entry-exit=0",
]

def cuda_on_cpu_library(name, srcs, hdrs = [], textual_hdrs = [], deps = []):
    """A library of kernels that run on //kernels/cuda/testing:emulator.

    Args:
      name: the target's name.
      srcs: sources that include kernels/cuda/launch.h, or the `.cu` files that do.
      hdrs: headers.
      textual_hdrs: the `.cu` files.
      deps: libraries.
    """
    native.cc_library(
        name = name,
        testonly = True,
        srcs = srcs,
        hdrs = hdrs,
        copts = _COPTS,
        local_defines = ["LOCKSTEP_CUDA_ON_CPU"],
        textual_hdrs = textual_hdrs,
        deps = deps + ["//kernels/cuda/testing:emulator"],
    )
