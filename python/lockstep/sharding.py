"""Loops that all ranks leave together, means that count every sample once, and checks that name the rank that differs.

The failure this prevents. Under FSDP every forward pass is a chain of collectives. Rank 1 runs out of validation batches
before rank 0, which enters the next forward pass and waits for rank 1 until a timeout ends the run half an hour later.

    for batch, real in lockstep.sharding.lockstep(loader, policy="until_last"):   # every rank leaves here, at one step
        loss = model(batch).mean()
        if real:
            total, count = total + loss.item() * len(batch), count + len(batch)
    mean = lockstep.sharding.weighted_mean(total / max(count, 1), count)          # over the samples of all ranks

The functions use the ranks of a process group of torch.distributed, which is initialized already. They talk over TCP
sockets of their own, on the CPU: no device waits, and the group's own collectives are not disturbed. Without an initialized
process group there is one rank. The source is the C++ library sharding (docs/sharding.md), and prime-rl's pull request 2636.

Up to 64 ranks each connects to every other. Beyond, each connects to 2 log2(n) of n ranks, which pass messages on.
"""

import ctypes
import math
import struct
from collections.abc import Callable, Generator, Iterable
from fractions import Fraction
from typing import Any, Generic, TypeVar

from lockstep import _core, _sockets
from lockstep._dataset import Dataset, Packed, dataset, pack
from lockstep._guard import Guard

__all__ = ["Dataset", "Guard", "Lockstep", "Packed", "dataset", "lockstep", "pack", "weighted_mean"]

Batch = TypeVar("Batch")

_make = _core.plain("lockstep_agreement_make", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char)
_delete = _core.plain("lockstep_agreement_delete", None, ctypes.c_void_p)
_offer = _core.function("lockstep_agreement_offer", ctypes.c_void_p, ctypes.c_char, ctypes.c_char_p)
_decide = _core.function("lockstep_agreement_decide", ctypes.c_void_p, ctypes.POINTER(ctypes.c_int32))

_POLICIES = {"until_first": b"F", "until_last": b"L"}  # as in sharding/agreement/agreement.h, and so are the states:
_BATCH, _FILLER, _NOTHING, _STOP, _ERROR = b"b", b"f", b"n", b"s", b"e"
_MOST_DROPPED = 10_000


class _Agreement:
    """Decides on every rank alike whether the loop goes on."""

    _handle: Any = None

    def __init__(self, collective: _sockets.Collective | None, policy: str) -> None:
        self._collective = collective
        self._handle = ctypes.c_void_p(_make(collective.handle if collective else None, _POLICIES[policy]))

    def offer(self, has: bytes, error: str = "") -> None:
        if self._collective is not None:
            _ = self._collective.handle  # an error if it is closed
        _offer(self._handle, has, _core.line(error))

    def decide(self) -> bool:
        go = ctypes.c_int32()
        if self._collective is None:
            _decide(self._handle, ctypes.byref(go))
        else:
            _ = self._collective.handle
            self._collective.wait(_decide, self._handle, ctypes.byref(go))
        return bool(go.value)

    def leave(self) -> None:
        """Makes the others stop at the next agreement, which this rank does not wait for."""
        if self._collective is None or not self._collective.is_closed:
            self.offer(_STOP)

    def abandon(self) -> None:
        """Tells the other ranks, by a closed connection, that this one takes no further part."""
        if self._collective is not None:
            self._collective.close()

    def __del__(self, delete: Any = _delete) -> None:  # at the end the module is empty
        delete(self._handle)


class Lockstep(Generic[Batch]):
    """What `lockstep` returns: iterates over (batch, real). Attributes: steps and filled, of the loop so far."""

    steps: int
    filled: int

    def __init__(
        self,
        iterable: Iterable[Batch],
        policy: str,
        group: Any,
        filler: Callable[[Batch | None], Batch] | None,
        read_ahead: bool,
    ) -> None:
        if policy not in _POLICIES:
            raise ValueError(f'sharding.lockstep: policy must be "until_first" or "until_last", not {policy!r}')
        self._iterable = iterable
        self._policy = policy
        self._group = group
        self._filler = filler
        self._read_ahead = read_ahead
        self._begin()

    def _begin(self) -> None:
        self.steps = 0
        self.filled = 0
        self._source: Any = None
        self._ahead: Any = None
        self._ahead_real = False
        self._last: Any = None
        self._has_last = False
        self._is_exhausted = False
        self._stop = False
        self._is_over = False
        self._error: Exception | None = None
        self._dropped = 0

    def __iter__(self) -> Generator[tuple[Batch, bool], None, None]:
        """Begins a loop. Every rank begins equally many, in one order with other functions of this module."""
        self._begin()
        return self._run(_Agreement(_sockets.collective_of(self._group), self._policy))

    def stop(self) -> None:
        """Makes every rank leave at the next agreement."""
        self._stop = True

    @property
    def dropped(self) -> float:
        """The number of this rank's batches that no step has used: 0 until the loop is over.

        Reads the rest of the iterable to count it: at most 10,000 batches, as it may have no end. Infinite if more are left.
        """
        if not self._is_over:
            return 0
        if self._source is None:
            self._source = iter(self._iterable)
        if self._ahead_real:
            self._dropped += 1
            self._ahead, self._ahead_real = None, False
        while not self._is_exhausted and self._dropped <= _MOST_DROPPED:
            try:
                next(self._source)
                self._dropped += 1
            except StopIteration:
                self._is_exhausted = True
        return self._dropped if self._dropped <= _MOST_DROPPED else math.inf

    def _run(self, agreement: _Agreement) -> Generator[tuple[Batch, bool], None, None]:
        is_told = True  # the others know that this rank has left, or leave themselves
        try:
            is_offered = False
            while True:
                is_told = False
                if not is_offered:
                    self._offer(agreement)
                is_offered = False
                is_told = True
                if not self._decide(agreement):
                    return
                is_told = False
                self.steps += 1
                self.filled += not self._ahead_real
                batch, real = self._ahead, self._ahead_real
                self._ahead, self._ahead_real = None, False
                if real and self._policy == "until_last":
                    self._last, self._has_last = batch, True
                if self._read_ahead:
                    self._offer(agreement)
                    is_offered = True
                yield batch, real
                del batch
        except GeneratorExit:
            is_told = True
            agreement.leave()
            raise
        finally:
            self._is_over = True
            self._last = None
            if not is_told:
                agreement.abandon()

    def _decide(self, agreement: _Agreement) -> bool:
        try:
            return agreement.decide()
        except RuntimeError:
            if self._error is not None:
                raise self._error  # with its own traceback
            raise

    def _offer(self, agreement: _Agreement) -> None:
        """Reads this rank's next batch and offers it. An offer is made even after an error: the others wait for it."""
        try:
            has = self._read()
        except Exception as error:
            self._error = error
            self._is_exhausted = True
            agreement.offer(_ERROR, f"{type(error).__name__}: {error}")
        else:
            agreement.offer(has)

    def _read(self) -> bytes:
        if self._stop:
            return _STOP
        if self._source is None:
            self._source = iter(self._iterable)
        if not self._is_exhausted:
            try:
                self._ahead = next(self._source)
                self._ahead_real = True
                return _BATCH
            except StopIteration:
                self._is_exhausted = True
        if self._policy == "until_first" or (self._filler is None and not self._has_last):
            return _NOTHING
        self._ahead = self._last if self._filler is None else self._filler(self._last)
        return _FILLER


def lockstep(
    iterable: Iterable[Batch],
    policy: str = "until_first",
    group: Any = None,
    filler: Callable[[Batch | None], Batch] | None = None,
    read_ahead: bool = False,
) -> Lockstep[Batch]:
    """Iterates over (batch, real) so that every rank of a group leaves the loop at the same step.

        batches = lockstep.sharding.lockstep(loader)
        for batch, real in batches:
            model(batch)
        print(batches.steps, batches.dropped)   # steps of all ranks; batches that this rank had left

    iterable: this rank's batches, of any type. The ranks' may be of different lengths, or without end.
    policy: "until_first" stops when any rank has run out; `dropped` counts the batches that are left. "until_last" stops
        when all have; a rank that has run out gets its last batch again, with `real` False: give it no weight.
    group: of torch.distributed; None: all ranks.
    filler: makes the batch of a rank that has run out from its last one, which is None if it had none.
    read_ahead: whether to read and to agree on the next batch before the body of the loop runs, so that the agreement costs
        no time. Then `break` on one rank alone is too late for the step that the others have agreed on, which waits for
        this rank if it has collectives.

    Collective: every rank of the group makes equally many steps. To leave early, `break` or `stop()`: the other ranks leave
    at the next agreement. An exception in the body of the loop is like `break`.

    Raises, at the same step on every rank: the exception of a rank's iterable or filler, on that rank, and a RuntimeError
    with the rank and the exception on the others; RuntimeError with the ranks if the policies differ, or if a rank without
    any batch needs a filler; ConnectionError with the rank that was lost; TimeoutError with the ranks that stayed away for
    as long as a collective of the group may take. Ctrl-C ends a wait within a second, and closes the connection.
    """
    return Lockstep(iterable, policy, group, filler, read_ahead)


def weighted_mean(value: Any, weight: Any, group: Any = None) -> float:
    """Returns the mean of the ranks' values by their weights: sum(value * weight) / sum(weight), the same on every rank.

        mean = lockstep.sharding.weighted_mean(loss_sum / max(count, 1), count)   # of all samples, not of the ranks' means

    value, weight: a number or a tensor of one element. A weight of 0 leaves out the value, which may then be NaN. The result
    is the float64 nearest to the exact mean of the float64 values. (In Lua the first argument is the sum.)

    Collective. Raises ValueError on every rank if all weights are 0, or with the rank whose weight is negative or whose
    value or weight is NaN or infinite.
    """
    try:
        own = (float(value), float(weight))
        mistake: Exception | None = None
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        own = (math.nan, math.nan)
        mistake = TypeError(
            f"sharding.weighted_mean: value and weight must be numbers or tensors of one element: {error}"
        )
    collective = _sockets.collective_of(group)
    data = struct.pack("=dd", *own)
    gathered = [data] if collective is None else collective.gather(data)
    if mistake is not None:
        raise mistake
    ranks = [0] if collective is None else collective.ranks
    pairs = [struct.unpack("=dd", each) for each in gathered]
    for rank, (each, of) in zip(ranks, pairs):
        if not math.isfinite(of) or of < 0:
            raise ValueError(f"sharding.weighted_mean: the weight of rank {rank} is {of:g}; it must be 0 or more")
        if of > 0 and not math.isfinite(each):
            raise ValueError(
                f"sharding.weighted_mean: the value of rank {rank} is {each:g}, with weight {of:g}; give a "
                "value that does not count the weight 0"
            )
    total = sum(Fraction(of) for _, of in pairs)
    if total == 0:
        raise ValueError(f"sharding.weighted_mean: the weights of all {len(ranks)} ranks are 0, so there is no mean")
    return float(sum(Fraction(each) * Fraction(of) for each, of in pairs if of > 0) / total)
