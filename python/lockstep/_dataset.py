"""Shards of a dataset, and chunks of one length. lockstep.sharding has them."""

import ctypes
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from lockstep import _core, _sockets

_i64 = ctypes.POINTER(ctypes.c_int64)
_shard_make = _core.function("lockstep_shard_make", ctypes.c_char_p, ctypes.POINTER(ctypes.c_void_p), _i64)
_shard_delete = _core.plain("lockstep_shard_delete", None, ctypes.c_void_p)
_shard_next = _core.plain("lockstep_shard_next", ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64, _i64)
_shard_start_after = _core.plain("lockstep_shard_start_after", ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64)
_packer_make = _core.plain("lockstep_packer_make", ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32, ctypes.c_int32)
_packer_delete = _core.plain("lockstep_packer_delete", None, ctypes.c_void_p)
_packer_add = _core.function(
    "lockstep_packer_add", ctypes.c_void_p, ctypes.c_int64, ctypes.POINTER(ctypes.c_void_p), _i64
)

_BLOCK = 1024  # indices that are drawn at a time


class Dataset:
    """The indices of one rank in one epoch. What `dataset` returns.

    Attributes: length of this rank's part, padding included; taken so far; padded, repeated indices in `length`; dropped,
    indices that no rank gets.
    """

    length: int
    taken: int
    padded: int
    dropped: int
    _handle: Any = None

    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options
        self._make()

    def _make(self) -> None:
        counts = (ctypes.c_int64 * 3)()
        made = ctypes.c_void_p()
        _shard_make(_core.encode(self._options), ctypes.byref(made), counts)
        self.__del__()
        self._handle = made
        self.length, self.padded, self.dropped = counts
        self.taken = 0
        self._has_ended = False
        self._block: list[int] = []

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[int]:
        """Goes on where it is. At the end of an epoch without set_epoch the same one begins again, as in torch's samplers."""
        if self._has_ended:
            self.set_epoch(self._options["epoch"])
        return self

    def __next__(self) -> int:
        if not self._block:
            indices = (ctypes.c_int64 * _BLOCK)()
            count = _shard_next(self._handle, _BLOCK, indices)
            self._block = indices[:count][::-1]
            if count == 0:
                self._has_ended = True
                raise StopIteration
        self.taken += 1
        return self._block.pop()

    def set_epoch(self, epoch: int) -> None:
        """Begins an epoch, in its own order. Every rank gives the same number."""
        self._options = {**self._options, "epoch": _core.whole(epoch, "epoch"), "start": 0}
        self._make()

    def state(self, taken: int | None = None) -> dict[str, Any]:
        """Returns the state for dataset(state=...), on any number of ranks: every rank has taken `taken` indices.

        taken: indices that this rank has trained on; None: those that it has drawn. Give it where something reads ahead of
        the training, as workers of a DataLoader do.
        """
        count = self.taken if taken is None else _core.whole(taken, "taken")
        if not 0 <= count <= self.length:
            raise ValueError(f"sharding.dataset: taken must be from 0 to length = {self.length}, not {count}")
        rest = {name: value for name, value in self._options.items() if name not in ("rank", "world")}
        return {**rest, "start": _shard_start_after(self._handle, count)}

    def __del__(self, delete: Any = _shard_delete) -> None:  # at the end the module is empty
        handle, self._handle = self._handle, None
        if handle is not None:
            delete(handle)


def dataset(
    size: int | None = None,
    *,
    seed: int = 0,
    shuffle: bool = True,
    drop_last: bool = False,
    pad: bool = False,
    rank: int | None = None,
    world: int | None = None,
    group: Any = None,
    state: Mapping[str, Any] | None = None,
) -> Dataset:
    """Iterates over the indices, 0 to size - 1, of this rank's samples in one epoch.

        indices = lockstep.sharding.dataset(len(samples), seed=1)
        loader = torch.utils.data.DataLoader(samples, batch_size=8, sampler=indices)
        for epoch in range(3):
            indices.set_epoch(epoch)     # without it every epoch has the same order
            for batch in loader: ...

    Together the ranks see every sample once. If size is not a multiple of the number of ranks, some ranks have one more;
    drop_last leaves these out (`dropped` counts them), pad gives the others one from the beginning of the epoch (`padded`
    counts them). The order is computed from seed and epoch, and not stored: 10^9 samples need no memory. The same seed gives
    another order than in Lua only by counting from 0.

    rank, world: this rank and the number of ranks; None: those of `group`, whose ranks then compare their options.
    state: of Dataset.state, in place of the other options; it goes on with the rest of the epoch, on any number of ranks.

    Collective, if rank and world are not given. Raises ValueError with the option that is out of range or, on every rank,
    with the options of each rank if they differ.
    """
    if (rank is None) != (world is None):
        raise ValueError("sharding.dataset: give both rank and world, or none of them")
    if drop_last and pad:
        raise ValueError("sharding.dataset: give drop_last or pad, not both")
    if state is not None and size is not None:
        raise ValueError("sharding.dataset: a state has the size; give one of them")
    if state is None:
        if size is None:
            raise ValueError("sharding.dataset: give size, the number of samples, or a state")
        state = {
            "size": _core.whole(size, "size"),
            "seed": _core.whole(seed, "seed"),
            "epoch": 0,
            "shuffle": bool(shuffle),
            "start": 0,
            "tail": "drop" if drop_last else "pad" if pad else "uneven",
        }
    options = _read_state(state)
    if rank is not None and world is not None:
        return Dataset({**options, "rank": _rank_of(rank, "rank"), "world": _rank_of(world, "world")})
    members = _sockets.find_members(group)
    if members is None:
        return Dataset({**options, "rank": 0, "world": 1})
    collective = _sockets.collective_of(group)
    if collective is not None:
        _compare(collective, options)
    return Dataset({**options, "rank": members.position, "world": len(members.ranks)})


def _read_state(state: Mapping[str, Any]) -> dict[str, Any]:
    names = {"size", "seed", "epoch", "shuffle", "start", "tail"}
    if not isinstance(state, Mapping) or set(state) != names:
        raise ValueError(f"sharding.dataset: a state is what Dataset.state returned, with {', '.join(sorted(names))}")
    if state["tail"] not in ("uneven", "drop", "pad"):
        raise ValueError(f'sharding.dataset: the tail of a state is "uneven", "drop" or "pad", not {state["tail"]!r}')
    numbers = {name: _core.whole(state[name], name) for name in ("size", "seed", "epoch", "start")}
    return {**numbers, "shuffle": bool(state["shuffle"]), "tail": state["tail"]}


def _rank_of(value: Any, name: str) -> int:
    number = _core.whole(value, name)
    if not 0 <= number < 2**31:
        raise ValueError(f"sharding.dataset: {name} must be from 0 to 2^31 - 1, not {number}")
    return number


def _compare(collective: _sockets.Collective, options: dict[str, Any]) -> None:
    texts = collective.gather_texts(json.dumps(options, sort_keys=True))
    if len(set(texts)) > 1:
        table = "".join(f"\n  rank {rank}: {text}" for rank, text in zip(collective.ranks, texts))
        raise ValueError(f"sharding.dataset: the ranks do not agree: samples would be repeated or lost{table}")


class Packed:
    """Chunks of one length. What `pack` returns. Attributes: chunks handed out so far; dropped_tokens."""

    chunks: int
    dropped_tokens: int

    def __init__(self, source: Iterable[Any], seq_len: int, split: bool, drop_last: bool) -> None:
        self.chunks = 0
        self.dropped_tokens = 0
        self._run = self._chunks(iter(source), ctypes.c_void_p(_packer_make(seq_len, split, drop_last)))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self._run

    def __next__(self) -> dict[str, Any]:
        return next(self._run)

    def _chunks(self, source: Iterator[Any], packer: ctypes.c_void_p) -> Iterator[dict[str, Any]]:
        samples: dict[int, dict[str, Any]] = {}  # by number, those that no chunk has whole
        try:
            number = 0
            for sample in source:
                samples[number] = _fields_of(sample, number)
                number += 1
                for parts in self._add(packer, len(samples[number - 1]["input_ids"])):
                    for done in [each for each in samples if each < parts[0][0]]:
                        del samples[done]
                    self.chunks += 1
                    yield _concatenate(samples, parts)
            for parts in self._add(packer, -1):
                self.chunks += 1
                yield _concatenate(samples, parts)
        finally:
            _packer_delete(packer)

    def _add(self, packer: ctypes.c_void_p, tokens: int) -> list[list[list[int]]]:
        text = ctypes.c_void_p()
        dropped = ctypes.c_int64()
        _packer_add(packer, tokens, ctypes.byref(text), ctypes.byref(dropped))
        self.dropped_tokens = dropped.value
        return json.loads(_core.take_text(text.value)) if text.value else []


def _fields_of(sample: Any, number: int) -> dict[str, Any]:
    fields = dict(sample) if isinstance(sample, Mapping) else {"input_ids": sample}
    for name, values in fields.items():
        dim = values.dim() if hasattr(values, "dim") else 1 + (len(values) > 0 and hasattr(values[0], "__len__"))
        if dim != 1 and name == "input_ids":
            raise ValueError(
                f"sharding.pack: sample {number}: input_ids must be ids in one dimension, not {dim}: a batch is no sample"
            )
    if "input_ids" not in fields:
        raise ValueError(f"sharding.pack: sample {number} has no input_ids")
    if "seq_lens" in fields:
        raise ValueError(
            f"sharding.pack: sample {number} has seq_lens, which is what a chunk has: is it packed already?"
        )
    length = len(fields["input_ids"])
    for name, values in fields.items():
        if len(values) != length:
            raise ValueError(
                f"sharding.pack: sample {number}: {name} has {len(values)} values, but input_ids has {length}"
            )
    if "position_ids" not in fields:
        ids = fields["input_ids"]
        positions = list(range(length))
        fields["position_ids"] = ids.new_tensor(positions) if hasattr(ids, "new_tensor") else positions
    return fields


def _concatenate(samples: dict[int, dict[str, Any]], parts: list[list[int]]) -> dict[str, Any]:
    chunk: dict[str, Any] = {}
    for sample, _, _ in parts:
        other = set(samples[sample]) - set(samples[parts[0][0]])
        if other:
            raise ValueError(
                f"sharding.pack: sample {sample} has {', '.join(sorted(other))}, which a sample before it has not"
            )
    for name in samples[parts[0][0]]:
        pieces = []
        for sample, begin, end in parts:
            if name not in samples[sample]:
                raise ValueError(f"sharding.pack: sample {sample} has no {name}, which a sample before it has")
            pieces.append(samples[sample][name][begin:end])
        if hasattr(pieces[0], "new_tensor"):
            import torch

            chunk[name] = torch.cat(pieces)
        else:
            chunk[name] = [value for piece in pieces for value in piece]
    chunk["seq_lens"] = [end - begin for _, begin, end in parts]
    return chunk


def pack(source: Iterable[Any], seq_len: int, *, split: bool = True, drop_last: bool = True) -> Packed:
    """Concatenates samples and cuts chunks of seq_len tokens.

        for chunk in lockstep.sharding.pack(samples, seq_len=4096):
            model(chunk["input_ids"], chunk["position_ids"], chunk["seq_lens"])

    source: samples in their order. A sample is a list or a tensor of ids of one dimension, or a dictionary of those with
    input_ids and other values per token, as labels. A chunk is a dictionary of the same, with position_ids (from 0 in each
    sample, unless a sample has them) and seq_lens, the lengths of its pieces.
    split: True cuts a sample that does not fit and continues it in the next chunk. False moves it to the next chunk whole,
        and drops the tokens of a sample beyond seq_len.
    drop_last: whether to drop a last chunk that is not full. `dropped_tokens` of the result counts all that no chunk has.

    Raises ValueError with the number of a sample whose fields have different lengths.
    """
    length = _core.whole(seq_len, "seq_len")
    if length < 1:
        raise ValueError(f"sharding.pack: seq_len must be at least 1, not {length}")
    return Packed(source, length, split, drop_last)
