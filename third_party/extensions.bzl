"""For MODULE.bazel: what deps.bzl declares in a WORKSPACE."""

load("//third_party:deps.bzl", "lockstep_repositories")

def _dependencies_impl(_ctx):
    lockstep_repositories(existing = [])

dependencies = module_extension(implementation = _dependencies_impl)
