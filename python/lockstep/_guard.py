"""Guard: names the rank that disagrees, and the rank that stays away. lockstep.sharding has it."""

import collections
import ctypes
import dataclasses
import zlib
from typing import Any

from lockstep import _core, _places, _sockets

_WRITE = ctypes.CFUNCTYPE(None, ctypes.c_char_p)
_READ = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p)
_make = _core.plain(
    "lockstep_guard_make",
    ctypes.c_void_p,
    ctypes.c_void_p,
    _WRITE,
    _READ,
    ctypes.c_double,
    ctypes.POINTER(ctypes.c_int32),
)
_delete = _core.plain("lockstep_guard_delete", None, ctypes.c_void_p)
_check = _core.function("lockstep_guard_check", ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p)


def fingerprint(value: Any) -> str:
    """Returns a text that is equal for equal values on every rank.

    Tensors and arrays of NumPy are named by dtype, shape and a checksum of their bytes. Raises TypeError for a value whose
    text would hold its address in memory.
    """
    if isinstance(value, dict):
        items = sorted((fingerprint(key), fingerprint(each)) for key, each in value.items())
        return "{" + ", ".join(f"{key}: {each}" for key, each in items) + "}"
    if isinstance(value, (set, frozenset)):
        return "{" + ", ".join(sorted(map(fingerprint, value))) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(fingerprint, value)) + "]"
    if hasattr(value, "data_ptr") and hasattr(value, "untyped_storage"):
        return _of_tensor(value)
    if hasattr(value, "dtype") and hasattr(value, "tobytes") and value.shape:
        return f"{value.dtype} {list(value.shape)} crc {zlib.crc32(value.tobytes()):08x}"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return type(value).__name__ + fingerprint(fields)
    if getattr(type(value), "__repr__") is object.__repr__ or callable(value):
        raise TypeError(
            f"sharding.Guard: a {type(value).__name__} has no text that is equal on every rank; give its fields, "
            "as numbers, text, lists, dictionaries or tensors"
        )
    return repr(value)


def _of_tensor(tensor: Any) -> str:
    local = tensor.detach()
    if hasattr(local, "full_tensor"):  # a DTensor: its local part differs from rank to rank
        return f"{str(local.dtype).removeprefix('torch.')} {list(local.shape)} sharded"
    local = local.resolve_conj().resolve_neg().cpu().contiguous()
    size = local.numel() * local.element_size()
    crc = zlib.crc32((ctypes.c_char * size).from_address(local.data_ptr())) if size else 0
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)} crc {crc:08x}"


_made: collections.Counter[Any] = collections.Counter()


class Guard:
    """Compares a value over all ranks, and names the rank that has another one or does not come.

    The failure this prevents. Two ranks draw different samples, or one skips a step. Training goes on with wrong gradients,
    or hangs in a collective that names no rank.

        guard = lockstep.sharding.Guard(timeout=30)
        guard.check("step 7", {"kind": kind, "samples": indices})
        # RuntimeError on every rank if they differ:
        #   guard: the ranks disagree at "step 7":
        #     rank 0: {'kind': 'image', 'samples': [3, 9]} (train.py:41)
        #     rank 1: {'kind': 'text', 'samples': [4, 8]} (train.py:41)

    timeout: seconds to wait for the other ranks. group: of torch.distributed; None: all ranks. Collective: every rank of the
    group makes its guards in one order. Used by one thread.
    """

    _handle: Any = None

    def __init__(self, timeout: float = 30, group: Any = None) -> None:
        limit = _core.number(timeout, "timeout")
        if limit <= 0:
            raise ValueError(f"sharding.Guard: timeout must be more than 0 s, not {limit:g}")
        self._collective: _sockets.Collective | None = None
        members = _sockets.find_members(group)
        if members is None or len(members.ranks) == 1:
            return
        # A connection of its own: its limit differs from the group's, and after an absence it is of no use.
        collective = self._collective = _sockets.Collective(members, limit)
        notes = f"{collective.key}/note"

        def write(note: bytes) -> None:
            collective.store.set(f"{notes}/{members.position}", note.decode())

        def read(position: int, note: int) -> None:
            key = f"{notes}/{position}"
            if collective.store.check([key]):
                _sockets.assign_text(note, collective.store.get(key))

        self._callbacks = (_WRITE(write), _READ(read))
        self._handle = ctypes.c_void_p(_make(collective.handle, *self._callbacks, limit, collective.rank_array))

    def check(self, label: str, value: Any) -> None:
        """Compares `label`, which check this is, and `value` over all ranks.

        value: numbers, text, lists, tuples, sets, dictionaries, dataclasses, tensors, arrays of NumPy, or what else has the
        same repr on every rank. Of a tensor its dtype, shape and bytes are compared, on the CPU; of a DTensor dtype and shape.

        Collective. Raises on every rank that came: RuntimeError with a table of ranks and values, after which further checks
        go on; TimeoutError or ConnectionError with the ranks that did not come and the last check of each. TypeError if the
        value cannot be compared.
        """
        text = fingerprint(value)
        if self._collective is None:
            return
        _ = self._collective.handle
        self._collective.wait(
            _check,
            self._handle,
            _core.line(str(label)),
            _core.line(text),
            _core.line(_places.caller()),
        )

    def __del__(self, delete: Any = _delete) -> None:  # at the end the module is empty
        if self._handle is not None:
            delete(self._handle)
