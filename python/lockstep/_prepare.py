"""Packs samples of tensors into micro-batches. Private: lockstep.batching.prepare is the way in."""

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from lockstep import _core
from lockstep import _ops as _ops  # loads torch.ops.lockstep

# What a micro-batch has of its own.
_FIELDS = frozenset(
    (
        "input_ids",
        "loss_mask",
        "position_ids",
        "cu_seqlens",
        "seq_lens",
        "samples",
        "kind",
        "padding",
        "padding_tokens",
        "cost",
    )
)


class MicroBatch(dict[str, torch.Tensor]):
    """The packed samples of one rank in one micro-step: a dictionary of tensors.

    input_ids, position_ids: int64 [length]. loss_mask: bool [length], false for the first token of each sample.
    cu_seqlens: int32 [sequences + 1], as lockstep.nn.attention takes it. Streams: [length, ...] each. Other tensors of the
    samples are concatenated on dimension 0.

    Attributes: kind; padding, whether it only keeps ranks aligned and trains nothing; padding_tokens, the last ones; cost;
    samples, the indices of its samples; seq_lens, their lengths, of which the last includes padding.
    """

    kind: str
    padding: bool
    padding_tokens: int
    cost: float
    samples: list[int]
    seq_lens: list[int]

    def __init__(self, tensors: Mapping[str, torch.Tensor], facts: Mapping[str, Any]) -> None:
        super().__init__(tensors)
        self.__dict__.update(facts)

    def __repr__(self) -> str:
        shapes = {name: list(tensor.shape) for name, tensor in self.items()}
        return f"MicroBatch(kind={self.kind!r}, padding={self.padding}, samples={self.samples}, {shapes})"


@dataclasses.dataclass(frozen=True)
class Report:
    """Counts over all ranks, the same on each. `held` has the indices of the samples that wait for a later call.

    tokens: of samples, after the cut; loss_tokens are part of them. padding_tokens: in padding micro-batches, and from padding
    to a multiple. dropped_samples begin with an image longer than seq_len. makespan: the sum over micro-steps of the most
    expensive rank's cost; ideal: the cost of all samples / ranks. lower_bound: 0 if not known. Ranks with one fingerprint
    follow one plan.
    """

    micro_steps: int
    tokens: int
    loss_tokens: int
    padding_tokens: int
    padding_micro_batches: int
    truncated_samples: int
    truncated_tokens: int
    truncated_loss_tokens: int
    dropped_samples: int
    samples_without_loss: int
    makespan: float
    ideal: float
    lower_bound: float
    fingerprint: int
    held: list[int]


def _read_sample(sample: Mapping[str, Any], index: int) -> dict[str, torch.Tensor]:
    tensors = {}
    if not isinstance(sample.get("kind", ""), str):
        raise TypeError(f"prepare: sample {index}: kind must be text, not {sample['kind']!r}")
    for name, value in sample.items():
        if name in ("kind", "may_wait"):
            continue
        if name in _FIELDS and name not in ("input_ids", "loss_mask", "position_ids"):
            raise ValueError(f"prepare: sample {index}: {name} is a field of every micro-batch; give it another name")
        try:
            tensors[name] = torch.as_tensor(value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise TypeError(
                f"prepare: sample {index}: {name} must be a tensor or a sequence of numbers: {error}"
            ) from None
    for name in ("input_ids", "loss_mask"):
        if name not in tensors:
            raise ValueError(f"prepare: sample {index} has no {name}")
    return tensors


def _read_streams(streams: Mapping[str, Any]) -> dict[str, list[float]]:
    fills = {}
    for name, fill in streams.items():
        if name in _FIELDS:
            raise ValueError(f"prepare: streams: {name} is a field of every micro-batch; give it another name")
        absent, padding = fill if isinstance(fill, (tuple, list)) else (fill, fill)
        for value in (absent, padding):
            _core.number(value, f"prepare: streams: {name}")
        fills[name] = [absent, padding]
    return fills


def prepare(
    samples: Iterable[Mapping[str, Any]],
    *,
    seq_len: int,
    ranks: int,
    rank: int | None,
    pad_to_multiple_of: int,
    pad_token_id: int,
    balance: str,
    worth_a_step: float | None,
    cost: Any,
    mix_kinds: bool,
    streams: Mapping[str, Any],
    own_rows: Sequence[str],
    token_types: str,
    placeholders: Mapping[str, int | None],
) -> tuple[list[list[MicroBatch]], Report]:
    given = list(samples)
    options: dict[str, Any] = {
        "seq_len": _core.whole(seq_len, "seq_len"),
        "ranks": _core.whole(ranks, "ranks"),
        "only_rank": -1 if rank is None else _core.whole(rank, "rank"),
        "pad_to_multiple_of": _core.whole(pad_to_multiple_of, "pad_to_multiple_of"),
        "pad_token_id": _core.whole(pad_token_id, "pad_token_id"),
        "balance": balance,
        "mix_kinds": bool(mix_kinds),
        "streams": _read_streams(streams),
        "own_rows": list(own_rows),
        "token_types": token_types,
        "kinds": [sample.get("kind", "") for sample in given],
        "may_wait": [bool(sample.get("may_wait", False)) for sample in given],
    }
    if not 1 <= options["ranks"] < 2**31:
        raise ValueError(f"ranks must be from 1 to {2**31 - 1}, not {ranks}")
    if rank is not None and not 0 <= rank < ranks:
        raise ValueError(f"rank must be from 0 to {ranks - 1}, not {rank}")
    if worth_a_step is not None:
        options["worth_a_step"] = _core.number(worth_a_step, "worth_a_step")
    if cost is not None:
        options["cost"] = [[part.linear, part.quadratic] for part in cost]
    for name, value in placeholders.items():
        if value is not None:
            options[name] = _core.whole(value, name)
    read = [_read_sample(sample, index) for index, sample in enumerate(given)]
    tensors, text = torch.ops.lockstep.prepare_batches(read, json.dumps(options))
    result = json.loads(text)
    remaining = iter(tensors)
    batches = [[MicroBatch(next(remaining), facts) for facts in steps] for steps in result["batches"]]
    return batches, Report(**result["report"], held=result["held"])
