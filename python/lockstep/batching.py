"""Plans on which rank, and in which micro-step, each sample trains.

The failure this prevents. Under FSDP a forward pass is a chain of collectives. A rank with images runs the vision
encoder's collectives, a rank with text does not, and both wait forever. In a plan all ranks hold the same kind of
micro-batch at every micro-step, and equally many of them. Micro-batches of one step have similar costs, because a
micro-step lasts as long as its most expensive rank.

    plan = lockstep.batching.plan([100, 90, 80, 70], ["image", "text", "image", "text"], ranks=2, seq_len=100)
    for step in range(plan.micro_steps):
        mine = [samples[i] for i in plan.at(rank, step)]       # all of plan.kind(step), and at most seq_len tokens
        weight = 0 if plan.is_padding(rank, step) else 1       # a padding micro-batch must train nothing

A plan depends on its arguments alone: ranks that plan from the same samples agree without communication. The source is
the C++ library batching (docs/batching.md); prime-rl's pull requests 1918 and 1959 for kinds.
"""

import ctypes
import dataclasses
from collections.abc import Hashable, Iterable, Mapping, Sequence
from numbers import Integral
from typing import TYPE_CHECKING, Any

from lockstep import _core

if TYPE_CHECKING:
    from lockstep._prepare import MicroBatch, Report

_i64, _i32, _f64 = (ctypes.POINTER(kind) for kind in (ctypes.c_int64, ctypes.c_int32, ctypes.c_double))
_make = _core.function(
    "lockstep_plan_make", ctypes.c_char_p, ctypes.c_int64, _i64, _i32, _f64, _i64, _f64, ctypes.POINTER(ctypes.c_void_p)
)
_count = _core.plain("lockstep_plan_count", None, ctypes.c_void_p, _i64)
_read = _core.plain(
    "lockstep_plan_read", None, ctypes.c_void_p, _i32, ctypes.POINTER(ctypes.c_uint8), _f64, _i64, _i64, _i64, _f64
)
_delete = _core.plain("lockstep_plan_delete", None, ctypes.c_void_p)
_transformer_cost = _core.function("lockstep_transformer_cost", ctypes.c_char_p, _f64)


class Plan:
    """The micro-batches of all ranks. Attributes: ranks, micro_steps, tokens, padding_micro_batches, makespan, ideal,
    lower_bound.

    `makespan` is the sum over micro-steps of the most expensive rank's cost. `ideal` is the cost of all samples divided
    by ranks. No plan has a makespan below `lower_bound`.
    """

    ranks: int
    micro_steps: int
    tokens: int
    padding_micro_batches: int
    makespan: float
    ideal: float
    lower_bound: float

    def __init__(self, made: ctypes.c_void_p, ranks: int, kinds: Sequence[Hashable]) -> None:
        counts = (ctypes.c_int64 * 5)()
        _count(made, counts)
        self.ranks = ranks
        self.micro_steps, self.tokens, self.padding_micro_batches, micro_batches, samples = counts
        self._kinds = kinds
        self._kind = (ctypes.c_int32 * micro_batches)()
        self._padding = (ctypes.c_uint8 * micro_batches)()
        self._costs = (ctypes.c_double * micro_batches)()
        self._begins = (ctypes.c_int64 * micro_batches)()
        self._ends = (ctypes.c_int64 * micro_batches)()
        self._samples = (ctypes.c_int64 * samples)()
        bounds = (ctypes.c_double * 3)()
        _read(made, self._kind, self._padding, self._costs, self._begins, self._ends, self._samples, bounds)
        self.makespan, self.ideal, self.lower_bound = bounds
        for name in ("_kind", "_padding", "_costs", "_begins", "_ends", "_samples"):
            setattr(self, name, list(getattr(self, name)))  # what pickle knows

    def _index(self, rank: int, step: int) -> int:
        if not 0 <= rank < self.ranks:
            raise IndexError(f"rank must be from 0 to {self.ranks - 1}, not {rank}")
        if not 0 <= step < self.micro_steps:
            raise IndexError(f"step must be from 0 to {self.micro_steps - 1}, not {step}")
        return step * self.ranks + rank

    def at(self, rank: int, step: int) -> list[int]:
        """Returns the indices of the samples of a rank in a micro-step. In a padding micro-batch they are copies."""
        index = self._index(rank, step)
        return self._samples[self._begins[index] : self._ends[index]]

    def kind(self, step: int) -> Any:
        """Returns the kind of all ranks' micro-batches in a micro-step. Samples of other kinds may ride (`hosts`)."""
        return self._kinds[self._kind[self._index(0, step)]]

    def is_padding(self, rank: int, step: int) -> bool:
        """Returns whether the micro-batch only keeps the ranks aligned. It must have no weight in the loss."""
        return bool(self._padding[self._index(rank, step)])

    def cost(self, rank: int, step: int) -> float:
        """Returns the cost of a rank's micro-batch."""
        return self._costs[self._index(rank, step)]

    def __repr__(self) -> str:
        return (
            f"Plan(ranks={self.ranks}, micro_steps={self.micro_steps}, "
            f"padding_micro_batches={self.padding_micro_batches}, makespan={self.makespan:g}, "
            f"lower_bound={self.lower_bound:g})"
        )


def _number_kinds(kinds: Iterable[Hashable]) -> dict[Hashable, int]:
    """Numbers kinds in ascending order, so that the order of samples does not decide that of steps."""
    distinct: set[Any] = set(kinds)
    # Others may have no order, or another one in another process.
    if not any(all(isinstance(kind, type_) for kind in distinct) for type_ in (str, Integral)):
        named = sorted({type(kind).__name__ for kind in distinct})
        raise TypeError(f"kinds must be all text or all whole numbers, not {', '.join(named)}")
    return {kind: number for number, kind in enumerate(sorted(distinct))}


def plan(
    tokens: Iterable[int],
    kinds: Iterable[Hashable] | None = None,
    costs: Iterable[float] | None = None,
    *,
    ranks: int,
    seq_len: int,
    balance: str = "makespan",
    worth_a_step: float | None = None,
    hosts: Mapping[Any, Iterable[Any]] | None = None,
    least_tokens: Iterable[int] | None = None,
    least_costs: Iterable[float] | None = None,
) -> Plan:
    """Plans the micro-batches of samples.

    Every sample is in exactly one micro-batch that is not padding. No micro-batch exceeds `seq_len` tokens.

    tokens: of each sample, from 1 to seq_len. A list, an array of NumPy or a tensor.
    kinds: of each sample, as "text" and "image"; text or whole numbers. None: all samples are of one kind.
    costs: of each sample, in any unit; None: its tokens. See transformer_cost.
    balance: "makespan" chooses packing and ranks together. "round_robin" packs first-fit-decreasing and deals the
        micro-batches out in turn, as prime-rl's pull request 1918 does.
    worth_a_step: share of the makespan that an additional micro-step must save; None: 0.005.
    hosts: for a kind, the kinds whose micro-batches may also hold its samples: {"text": ["image"]}. Kinds that no sample
        has are passed over.
    least_tokens, least_costs: of the shortest copy of each sample that still runs all modules of its kind. Padding
        micro-batches hold such copies. None: 1 token, without cost.

    Raises ValueError, which names the sample or the option that is out of range.
    """
    sizes = _core.integers(tokens, "tokens")
    given = [None] * len(sizes) if kinds is None else (kinds.tolist() if hasattr(kinds, "tolist") else list(kinds))
    _core.of_length(given, len(sizes), "kinds", "samples")
    numbers: dict[Any, int] = {None: 0} if kinds is None else _number_kinds(given)
    code = _core.integers([numbers[kind] for kind in given], "kinds", "i")
    cost = _core.floats(sizes if costs is None else costs, "costs")
    _core.of_length(cost, len(sizes), "costs", "samples")
    least = _core.integers([1] * len(sizes) if least_tokens is None else least_tokens, "least_tokens")
    _core.of_length(least, len(sizes), "least_tokens", "samples")
    least_cost = _core.floats([0] * len(sizes) if least_costs is None else least_costs, "least_costs")
    _core.of_length(least_cost, len(sizes), "least_costs", "samples")
    options: dict[str, Any] = {
        "seq_len": _core.whole(seq_len, "seq_len"),
        "ranks": _core.whole(ranks, "ranks"),
        "balance": _core.text(balance, "balance"),
        "hosts": {},
    }
    if worth_a_step is not None:
        options["worth_a_step"] = _core.number(worth_a_step, "worth_a_step")
    if hosts is not None and not isinstance(hosts, Mapping):
        raise TypeError(f'hosts must be a dictionary, as {{"text": ["image"]}}, not {hosts!r}')
    for rider, names in (hosts or {}).items():
        if isinstance(names, str):
            raise TypeError(f"hosts[{rider!r}] must be a list of kinds, not the text {names!r}")
        # A kind without samples hosts nothing here.
        numbered = sorted(numbers[name] for name in names if name in numbers)
        if rider in numbers and numbered:
            options["hosts"][str(numbers[rider])] = numbered
    made = ctypes.c_void_p()
    _make(
        _core.encode(options),
        len(sizes),
        _core.pointer(sizes, ctypes.c_int64),
        _core.pointer(code, ctypes.c_int32),
        _core.pointer(cost, ctypes.c_double),
        _core.pointer(least, ctypes.c_int64),
        _core.pointer(least_cost, ctypes.c_double),
        ctypes.byref(made),
    )
    try:
        return Plan(made, options["ranks"], list(numbers))
    finally:
        _delete(made)


@dataclasses.dataclass(frozen=True)
class SequenceCost:
    """The cost of one sequence of L tokens (or image of L patches): linear * L + quadratic * L * L, in FLOPs."""

    linear: float
    quadratic: float

    def __call__(self, length: int) -> float:
        return self.linear * length + self.quadratic * length * length


def transformer_cost(
    *,
    hidden_size: int = 0,
    num_hidden_layers: int = 0,
    vocab_size: int = 0,
    num_attention_heads: int = 0,
    num_key_value_heads: int = 0,
    head_dim: int = 0,
    q_lora_rank: int = 0,
    kv_lora_rank: int = 0,
    qk_nope_head_dim: int = 0,
    qk_rope_head_dim: int = 0,
    v_head_dim: int = 0,
    intermediate_size: int = 0,
    num_experts: int = 0,
    num_experts_per_tok: int = 0,
    moe_intermediate_size: int = 0,
    shared_expert_intermediate_size: int = 0,
    first_k_dense_replace: int = 0,
    vision_hidden_size: int = 0,
    vision_depth: int = 0,
    vision_intermediate_size: int = 0,
) -> tuple[SequenceCost, SequenceCost]:
    """Returns the costs of a sequence and of an image for a forward pass of a decoder and its vision tower.

    The names are those of Hugging Face's config.json. 0 stands for a part that the model does not have.

        sequence, image = lockstep.batching.transformer_cost(hidden_size=4096, num_hidden_layers=36, ...)
        plan = lockstep.batching.plan(tokens, costs=[sequence(n) for n in tokens], ranks=8, seq_len=32768)

    Raises ValueError with the field that is missing or negative.
    """
    config = {name: _core.whole(value, name) for name, value in locals().items()}
    costs = (ctypes.c_double * 4)()
    _transformer_cost(_core.encode(config), costs)
    return SequenceCost(costs[0], costs[1]), SequenceCost(costs[2], costs[3])


def prepare(
    samples: Iterable[Mapping[str, Any]],
    *,
    seq_len: int,
    ranks: int = 1,
    rank: int | None = None,
    pad_to_multiple_of: int = 1,
    pad_token_id: int = 0,
    balance: str = "makespan",
    worth_a_step: float | None = None,
    cost: tuple[SequenceCost, SequenceCost] | None = None,
    mix_kinds: bool = True,
    streams: Mapping[str, Any] | None = None,
    own_rows: Sequence[str] = (),
    token_types: str = "mm_token_type_ids",
    image_token_id: int | None = None,
    video_token_id: int | None = None,
    audio_token_id: int | None = None,
) -> "tuple[list[list[MicroBatch]], Report]":
    """Packs samples of tensors into micro-batches: batches[rank][micro_step], and a report. Needs torch.

        batches, report = lockstep.batching.prepare(samples, seq_len=4096, ranks=8, streams={"advantages": 0.0})
        for batch in batches[rank]:
            logits = model(batch["input_ids"], batch["position_ids"], batch["cu_seqlens"])

    Samples longer than seq_len are cut, never inside an image, video or audio clip. All ranks get equally many micro-batches,
    of one kind at each micro-step. Padding trains nothing. Ranks that prepare the same samples agree without communication.

    samples: dictionaries of tensors on the CPU, or sequences of numbers. input_ids: int64 [n]; loss_mask: bool, or 0 and 1,
        [n]; position_ids: int64 [n] or [3, n], None: 0 to n - 1; streams: [n, ...]. Other tensors are concatenated on
        dimension 0, as pixel_values and image_grid_thw. "kind" is text, which the tensors decide if it is not given.
        "may_wait": True leaves a sample for a later call (report.held) if its micro-step would need padding.
    rank: makes only this rank's micro-batches; the other ranks' lists are empty.
    pad_to_multiple_of: tokens of each micro-batch; it must divide seq_len.
    balance, worth_a_step: as in plan.
    cost: of a sequence and of an image, as transformer_cost returns them; None: the number of tokens.
    mix_kinds: whether text may ride in micro-batches with images.
    streams: the per-token values beside those above, by name: the value for samples without them and for padding, or a
        pair of the two.
    own_rows: names of tensors with any number of rows, which follow neither the sample nor its images.
    token_types: the stream of modality ids: 1, 2 and 3 for placeholders of images, videos and audio. In samples without it
        image_token_id and its like say which tokens of input_ids are placeholders.

    Raises ValueError, which names the option, or the sample and the field.
    """
    from lockstep import _prepare

    placeholders = {
        "image_token_id": image_token_id,
        "video_token_id": video_token_id,
        "audio_token_id": audio_token_id,
    }
    return _prepare.prepare(
        [{name: value for name, value in sample.items() if value is not None} for sample in samples],
        seq_len=seq_len,
        ranks=ranks,
        rank=rank,
        pad_to_multiple_of=pad_to_multiple_of,
        pad_token_id=pad_token_id,
        balance=balance,
        worth_a_step=worth_a_step,
        cost=cost,
        mix_kinds=mix_kinds,
        streams=streams or {},
        own_rows=own_rows,
        token_types=token_types,
        placeholders=placeholders,
    )


def __getattr__(name: str) -> Any:
    if name in ("MicroBatch", "Report"):  # the types of prepare's results, which need torch
        from lockstep import _prepare

        return getattr(_prepare, name)
    raise AttributeError(f"module 'lockstep.batching' has no attribute '{name}'")
