"""Fused layers and tiled MLPs for PyTorch models: torch.nn.Modules over torch.ops.lockstep.*.

    norm, mlp = lockstep.nn.RMSNorm(4096), lockstep.nn.TiledMLP(lockstep.nn.SwiGLU(4096, 14336), tiles=8)
    y, sum = norm(attended, residual)                       # y = norm(sum), sum = attended + residual, in one pass
    x = sum + mlp(y)                                        # holds the activations of one tile
    loss = lockstep.nn.cross_entropy(x, head.weight, labels)  # holds the logits of one tile

Fused operators run on CPUs (AVX2, AVX-512) in float16, bfloat16, float32 and float64, and compute 16-bit numbers in
float32. On other devices they run torch's operators. They work under autograd, autocast and torch.compile with
fullgraph=True, except TiledMLP, which torch.compile runs as it is. The source is the C++ libraries kernels and tiled_mlp
(docs/kernels.md, docs/tiled_mlp.md).
"""

from collections.abc import Sequence
from typing import Any

import torch

from lockstep import _ops as _ops  # loads torch.ops.lockstep
from lockstep._tiled import TiledMLP, tile

__all__ = [
    "RMSNorm",
    "Rotary",
    "SwiGLU",
    "TiledCrossEntropy",
    "TiledMLP",
    "attention",
    "cross_entropy",
    "rms_norm",
    "rotate",
    "swiglu",
    "tile",
]


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    """Returns x / sqrt(mean(x^2) + eps) * weight along the last dimension (arXiv 1910.07467), in x's dtype.

    x: [..., size]. weight: [size], converted to x's dtype. The first factor is rounded to that dtype before it is scaled,
    as in Llama and Qwen.
    """
    return torch.ops.lockstep.rms_norm(x, weight.to(x.dtype), eps)


class RMSNorm(torch.nn.Module):
    """rms_norm with a weight of its own, and a sum before it in the same pass over memory."""

    def __init__(
        self,
        size: int,
        eps: float = 1e-6,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.eps = eps
        self.weight = torch.nn.Parameter(torch.ones(size, device=device, dtype=dtype))

    def forward(
        self, x: torch.Tensor, residual: torch.Tensor | None = None
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Returns the norm of x; with a residual of x's shape and dtype the norm of their sum, and the sum.

        x: [..., size].
        """
        if residual is None:
            return rms_norm(x, self.weight, self.eps)
        return torch.ops.lockstep.add_rms_norm(x, residual, self.weight.to(x.dtype), self.eps)

    def extra_repr(self) -> str:
        return f"{self.weight.shape[0]}, eps={self.eps}"


def swiglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """Returns silu(gate) * up (arXiv 2002.05202). gate, up: of one shape and dtype."""
    return torch.ops.lockstep.swiglu(gate, up)


class SwiGLU(torch.nn.Module):
    """The gated MLP of Llama and Qwen, with their names: down_proj(silu(gate_proj(x)) * up_proj(x))."""

    def __init__(
        self,
        hidden: int,
        intermediate: int,
        *,
        bias: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.gate_proj = torch.nn.Linear(hidden, intermediate, bias, device, dtype)
        self.up_proj = torch.nn.Linear(hidden, intermediate, bias, device, dtype)
        self.down_proj = torch.nn.Linear(intermediate, hidden, bias, device, dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns [..., hidden] for x [..., hidden]."""
        return self.down_proj(swiglu(self.gate_proj(x), self.up_proj(x)))


class Rotary(torch.nn.Module):
    """The cosines and sines of rotary position embeddings (arXiv 2104.09864), as `rotate` takes them."""

    frequencies: torch.Tensor

    def __init__(self, size: int, base: float = 10000.0) -> None:
        """size: of a head, even. base: `rope_theta` of Hugging Face's config.json."""
        super().__init__()
        if size < 2 or size % 2:
            raise ValueError(f"Rotary: size must be even and at least 2, not {size}")
        exponents = torch.arange(0, size, 2, dtype=torch.float64) / size
        self.register_buffer("frequencies", (base**-exponents).float(), persistent=False)

    def forward(self, positions: torch.Tensor, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns cos and sin, [..., 1, size] of this dtype, for whole numbers `positions` [...].

        The first half of sin is negated. Packed rows count their positions anew in each sequence.
        """
        angles = (positions.unsqueeze(-1).float() * self.frequencies.float()).unsqueeze(-2)
        cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
        return torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Turns the pairs (i, i + size / 2) of each head by the angles of its token.

    x: [..., heads, size]. cos, sin: [..., 1, size] of Rotary, without leading dimensions that all share; x's dtype, or
    float32 for a 16-bit x. In transformers' `sin` the first half is not negated: negate it. No gradient for cos and sin.
    """
    shape = (*x.shape[:-2], 1, x.shape[-1])
    return torch.ops.lockstep.rotate(x, cos.expand(shape), sin.expand(shape))


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    seq_lens: Sequence[int] | None = None,
    cu_seqlens: torch.Tensor | None = None,
    causal: bool = True,
    scale: float | None = None,
    window: int | None = None,
) -> torch.Tensor:
    """Returns the attention of sequences that lie one after the other, without padding: [tokens, heads, dim].

    A token sees tokens of its own sequence alone.

    q: [tokens, heads, dim]. k, v: [tokens, kv_heads, dim], of q's dtype; heads is a multiple of kv_heads.
    seq_lens: the lengths of the sequences, which add up to tokens; or cu_seqlens: int32 or int64 [sequences + 1], where each
        begins, and tokens, as FlashAttention takes it. With neither, all tokens are one sequence. Under torch.compile
        cu_seqlens compiles once, seq_lens for each packing.
    causal: whether a token sees only itself and the tokens before it.
    scale: of the scores; None: dim^-0.5.
    window: a token sees itself, window - 1 tokens before it and, if not causal, window - 1 after it.

    Raises ValueError for shapes, dtypes and lengths that do not fit together. Gradients of gradients are an error. On other
    devices than CPUs it is a loop of torch.nn.functional.scaled_dot_product_attention.
    """
    if seq_lens is not None and cu_seqlens is not None:
        raise ValueError("attention: give seq_lens or cu_seqlens, not both")
    if cu_seqlens is not None and cu_seqlens.device != q.device:
        raise ValueError(f"attention: q is on {q.device}, but cu_seqlens on {cu_seqlens.device}")
    if seq_lens is not None:
        if not all(isinstance(length, int) for length in seq_lens):  # torch.compile reads this line, too
            raise TypeError(f"attention: seq_lens must be whole numbers, not {seq_lens}")
        if max(seq_lens, default=0) > q.shape[0]:
            raise ValueError(f"attention: a sequence of {max(seq_lens)} tokens is longer than the {q.shape[0]} of q")
    if q.device.type not in ("cpu", "meta"):
        if seq_lens is None:
            seq_lens = [q.shape[0]] if cu_seqlens is None else cu_seqlens.diff().tolist()
        lengths = [length for length in seq_lens if length > 0]
        return torch.ops.lockstep.attention(q, k, v, lengths, causal=causal, scale=scale, window=window)
    if cu_seqlens is None:
        lengths = torch.tensor([q.shape[0]] if seq_lens is None else list(seq_lens), dtype=torch.int64)
        cu_seqlens = torch.cat((lengths.new_zeros(1), lengths.cumsum(0)))
    return torch.ops.lockstep.varlen_attention(q, k, v, cu_seqlens, causal=causal, scale=scale, window=window)[0]


def cross_entropy(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    labels: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    softcap: float = 0.0,
    divisor: torch.Tensor | None = None,
    tile_tokens: int = 0,
    accumulate_fp32: bool = False,
) -> torch.Tensor:
    """Returns the cross entropy of hidden @ weight.T + bias and labels, without holding the logits.

    Forward scores a tile of tokens at a time and computes the gradients with it (arXiv 2410.10989). The result is float32,
    or float64 if hidden is. If all labels are ignored it is 0, not NaN.

    hidden: [..., hidden]. weight: [vocabulary, hidden]. labels: int64 [...]. bias: [vocabulary]. All of one dtype; in
        autocast they are converted to its dtype.
    reduction: "mean" over the labels that are not ignored, "sum", or "none": the labels' shape. "none" costs two more
        products in backward.
    z_loss: adds z_loss * logsumexp^2 (arXiv 2204.02311). softcap: logits become softcap * tanh(logits / softcap).
    divisor: of the mean, in place of the number of labels; a tensor without dimensions. Data parallel averages gradients, so
        a mean over ranks needs the number of all ranks' labels / ranks.
    tile_tokens: 0: 1,024. accumulate_fp32: adds up a 16-bit weight's gradient in float32.

    Raises ValueError for shapes and dtypes that do not fit, options out of range and, on a CPU, labels out of range.
    """
    wanted = [torch.is_grad_enabled() and x is not None and x.requires_grad for x in (hidden, weight, bias)]
    return torch.ops.lockstep.tiled_cross_entropy(
        hidden,
        weight,
        labels,
        bias,
        divisor,
        ignore_index,
        label_smoothing,
        z_loss,
        softcap,
        reduction,
        tile_tokens,
        accumulate_fp32,
        wanted,
    )[0]


class TiledCrossEntropy(torch.nn.Module):
    """cross_entropy with its options, as torch.nn.CrossEntropyLoss: loss(hidden, weight, labels, bias=None)."""

    def __init__(
        self,
        *,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
        z_loss: float = 0.0,
        softcap: float = 0.0,
        tile_tokens: int = 0,
        accumulate_fp32: bool = False,
    ) -> None:
        super().__init__()
        self.options: dict[str, Any] = {
            "ignore_index": ignore_index,
            "reduction": reduction,
            "label_smoothing": label_smoothing,
            "z_loss": z_loss,
            "softcap": softcap,
            "tile_tokens": tile_tokens,
            "accumulate_fp32": accumulate_fp32,
        }

    def forward(
        self,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        labels: torch.Tensor,
        bias: torch.Tensor | None = None,
        divisor: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Returns the loss; see cross_entropy."""
        return cross_entropy(hidden, weight, labels, bias, divisor=divisor, **self.options)
