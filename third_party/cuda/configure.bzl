"""Finds nvcc. `@cuda//:defs.bzl` holds HAS_CUDA, NVCC, ARCHITECTURES, PTX and OPTIONS; nothing fails where there is none."""

# Compute capabilities, times ten, that get machine code: A100, RTX 30, L40S and RTX 40, H100 and H200, B200, RTX 50.
_WANTED = ["80", "86", "89", "90", "100", "120"]

# GPUs that are in no image get PTX of this one, which their driver compiles: 11.0, and those to come.
_PTX = "90"

# Makes images a fifth as large. Drivers from before CUDA 12.4 cannot read them, and those for CUDA 13 can.
_OPTIONS_OF_13 = ["--compress-mode=size"]

def _cuda_configure_impl(ctx):
    home = ctx.os.environ.get("CUDA_HOME", "/usr/local/cuda")
    nvcc = ctx.path(home + "/bin/nvcc")
    if not nvcc.exists:
        nvcc = ctx.which("nvcc")
    architectures, options = _WANTED, []
    if nvcc != None:
        known = ctx.execute([nvcc, "--list-gpu-code"]).stdout.split("\n")
        architectures = [a for a in _WANTED if "sm_" + a in known]
        if _PTX not in architectures:
            fail("%s compiles for %s; kernels need CUDA 12 or newer, with sm_%s" % (nvcc, " ".join(known) or "nothing", _PTX))
        release = ctx.execute([nvcc, "--version"]).stdout.partition("release ")[2].partition(".")[0]
        if release.isdigit() and int(release) >= 13:
            options = _OPTIONS_OF_13
    ctx.file("BUILD", "")
    ctx.file("defs.bzl", """HAS_CUDA = %s
NVCC = "%s"
ARCHITECTURES = %s
PTX = "%s"
OPTIONS = %s
""" % (nvcc != None, nvcc or "", architectures, _PTX, options))

cuda_configure = repository_rule(
    implementation = _cuda_configure_impl,
    environ = ["CUDA_HOME", "PATH"],
    local = True,
)
