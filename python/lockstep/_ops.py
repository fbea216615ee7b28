"""Loads liblockstep_torch.so: torch.ops.lockstep.*, and registers the gradients of two of its operators. Private.

The library is built for one version of torch, whose C++ interfaces change with each. Loaded by another it would end in
missing symbols or in wrong memory, so the versions are compared before.
"""

import pathlib
from typing import Any

import torch

from lockstep._core import version

_FOLDER = pathlib.Path(__file__).parent


def check_version(built: str, imported: str) -> None:
    """Raises ImportError unless both versions of torch have the same major and minor number."""
    wanted, got = (".".join(each.split(".")[:2]) for each in (built, imported))
    if wanted != got:
        raise ImportError(
            f"lockstep: its operators were built for torch {built}, but torch {imported} is imported. Install "
            f"torch {wanted}, or the wheel lockstep-{version}+torch{got}-*.whl"
        )


check_version((_FOLDER / "liblockstep_torch.txt").read_text().strip(), torch.__version__)
torch.ops.load_library(_FOLDER / "liblockstep_torch.so")


def _refuse(name: str) -> None:
    """Makes a gradient of the gradients an error."""

    def backward(ctx: Any, *gradients: Any) -> Any:
        raise RuntimeError(f"lockstep: {name} has no gradient of gradients")

    torch.library.register_autograd(f"lockstep::{name}", backward)


def _keep_attention(ctx: Any, inputs: Any, keyword_only_inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*inputs, *output)
    ctx.options = keyword_only_inputs
    ctx.set_materialize_grads(False)


def _attention_backward(ctx: Any, dy: torch.Tensor | None, _: Any) -> Any:
    if dy is None:
        return None, None, None, None
    q, k, v, cu_seqlens, y, logsumexp = ctx.saved_tensors
    gradients = torch.ops.lockstep.varlen_attention_backward(dy, q, k, v, y, logsumexp, cu_seqlens, **ctx.options)
    return *gradients, None


def _keep_cross_entropy(ctx: Any, inputs: Any, output: Any) -> None:
    hidden, weight, labels, bias, divisor, *options, gradients = inputs
    _, count, *computed = output
    ctx.mark_non_differentiable(count, *computed)
    ctx.set_materialize_grads(False)
    ctx.wanted = [gradient and x is not None for gradient, x in zip(gradients, (hidden, weight, bias))]
    ctx.by_token, ctx.options = options[4] == "none", options
    if ctx.by_token:
        ctx.save_for_backward(hidden, weight, labels, bias)
    else:
        ctx.save_for_backward(*computed)


def _cross_entropy_backward(ctx: Any, dloss: torch.Tensor | None, *_: Any) -> Any:
    results: list[torch.Tensor | None] = [None] * 13
    if dloss is None:
        return tuple(results)
    if ctx.by_token:
        ignore_index, label_smoothing, z_loss, softcap, _, tile_tokens, accumulate_fp32 = ctx.options
        found = torch.ops.lockstep.tiled_cross_entropy_backward(
            dloss,
            *ctx.saved_tensors,
            ignore_index,
            label_smoothing,
            z_loss,
            softcap,
            tile_tokens,
            accumulate_fp32,
            ctx.wanted,
        )
    else:
        found = [gradient * dloss.to(gradient.dtype) for gradient in ctx.saved_tensors]
    for place, gradient, wanted in zip((0, 1, 3), found, ctx.wanted):
        results[place] = gradient if wanted else None
    return tuple(results)


torch.library.register_autograd("lockstep::varlen_attention", _attention_backward, setup_context=_keep_attention)
torch.library.register_autograd(
    "lockstep::tiled_cross_entropy", _cross_entropy_backward, setup_context=_keep_cross_entropy
)
_refuse("varlen_attention_backward")
_refuse("tiled_cross_entropy_backward")
