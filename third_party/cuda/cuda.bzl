"""`cuda_library`: C++ that nvcc compiles.

    load("//third_party/cuda:cuda.bzl", "cuda_library")
    cuda_library(name = "scale", srcs = ["scale.cu"], hdrs = ["scale.h"])

Where the machine has no CUDA toolkit the target is incompatible: Bazel skips it, and what depends
on it, in `//...` patterns, and builds and tests everything else.
"""

load("@cuda//:defs.bzl", "ARCHITECTURES", "HAS_CUDA", "NVCC", "OPTIONS", "PTX")

def _cuda_objects_impl(ctx):
    compilation = cc_common.merge_cc_infos(cc_infos = [d[CcInfo] for d in ctx.attr.deps]).compilation_context
    objects = []
    for src in ctx.files.srcs:
        out = ctx.actions.declare_file("_cuda/%s/%s.o" % (ctx.label.name, src.basename))
        args = ctx.actions.args()
        args.add_all(["-c", src, "-o", out, "-std=c++20", "-O3", "-Xcompiler", "-fPIC", "--expt-relaxed-constexpr", "-I."])
        args.add_all(["-gencode=arch=compute_%s,code=sm_%s" % (a, a) for a in ARCHITECTURES])
        args.add("-gencode=arch=compute_%s,code=compute_%s" % (PTX, PTX))
        args.add_all(OPTIONS)
        args.add_all(compilation.defines, before_each = "-D")

        # nvcc has no -iquote of its own. As -I, the file "version" of @libtorch would be the header <version>.
        args.add_all(compilation.quote_includes, format_each = "-Xcompiler=-iquote,%s")
        args.add_all(compilation.includes, before_each = "-I")
        args.add_all(compilation.system_includes, before_each = "-isystem")
        ctx.actions.run(
            executable = NVCC,
            arguments = [args],
            inputs = depset([src] + ctx.files.hdrs, transitive = [compilation.headers]),
            outputs = [out],
            mnemonic = "CudaCompile",
            progress_message = "Compiling %s with nvcc" % src.short_path,
            use_default_shell_env = True,
        )
        objects.append(out)
    return [DefaultInfo(files = depset(objects))]

_cuda_objects = rule(
    implementation = _cuda_objects_impl,
    attrs = {
        "deps": attr.label_list(providers = [CcInfo]),
        "hdrs": attr.label_list(allow_files = [".h", ".cuh"]),
        "srcs": attr.label_list(allow_files = [".cu"], mandatory = True),
    },
)

def cuda_library(name, srcs, hdrs = [], deps = [], **kwargs):
    """A cc_library whose sources are `.cu` files, linked with CUDA's runtime.

    Args:
      name: the target's name.
      srcs: `.cu` files.
      hdrs: headers that targets in `deps` of others may include.
      deps: C++ libraries that the sources use.
      **kwargs: passed on to cc_library (visibility, tags, testonly).
    """
    if not HAS_CUDA:
        native.cc_library(
            name = name,
            hdrs = hdrs,
            target_compatible_with = ["//third_party/cuda:toolkit"],
            **kwargs
        )
        return
    _cuda_objects(
        name = name + "_objects",
        srcs = srcs,
        hdrs = hdrs,
        testonly = kwargs.get("testonly", False),
        deps = deps + ["@libtorch//:libtorch_cuda"],
    )
    native.cc_library(
        name = name,
        srcs = [":" + name + "_objects"],
        hdrs = hdrs,
        deps = deps + ["@libtorch//:libtorch_cuda"],
        **kwargs
    )
