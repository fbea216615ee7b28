"""Finds nvcc. `@cuda//:defs.bzl` holds HAS_CUDA and NVCC; nothing fails where there is none."""

def _cuda_configure_impl(ctx):
    home = ctx.os.environ.get("CUDA_HOME", "/usr/local/cuda")
    nvcc = ctx.path(home + "/bin/nvcc")
    if not nvcc.exists:
        nvcc = ctx.which("nvcc")
    ctx.file("BUILD", "")
    ctx.file("defs.bzl", "HAS_CUDA = %s\nNVCC = \"%s\"\n" % (nvcc != None, nvcc or ""))

cuda_configure = repository_rule(
    implementation = _cuda_configure_impl,
    environ = ["CUDA_HOME", "PATH"],
    local = True,
)
