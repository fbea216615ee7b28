"""Connects the ranks of a torch.distributed process group over sockets of their own. Private to this package.

The group's store tells the ranks each other's addresses. Messages then travel between the ranks without the store and
without the group's collectives: the CPU is enough, no device waits, and an error names the rank that is gone.
"""

import collections
import ctypes
import dataclasses
import fcntl
import json
import math
import os
import socket
import struct
import sys
import time
import weakref
from typing import Any, Callable, NoReturn, Sequence

from lockstep import _core

_EXCHANGE = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_char_p, ctypes.POINTER(ctypes.c_int32), ctypes.c_int, ctypes.c_void_p
)
_i32 = ctypes.POINTER(ctypes.c_int32)
_connect = _core.function(
    "lockstep_collective_connect",
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_char_p,
    _EXCHANGE,
    ctypes.c_double,
    _i32,
    ctypes.POINTER(ctypes.c_void_p),
)
_delete = _core.plain("lockstep_collective_delete", None, ctypes.c_void_p)
_gather = _core.function(
    "lockstep_collective_gather", ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int64, ctypes.c_char_p
)
_texts = _core.function("lockstep_collective_texts", ctypes.c_void_p, ctypes.c_char_p, ctypes.POINTER(ctypes.c_void_p))
_interruption = _core.plain("lockstep_interruption", None, ctypes.POINTER(ctypes.c_void_p))
assign_text = _core.plain("lockstep_text_assign", None, ctypes.c_void_p, ctypes.c_char_p)

_core.plain("lockstep_interpreter", None, *[ctypes.c_void_p] * 4)(
    *[
        ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p)
        for name in ("PyGILState_Ensure", "PyGILState_Release", "PyErr_CheckSignals", "PyErr_Fetch")
    ]
)

_LONGEST_S = 1800.0  # where the group does not say how long its collectives may wait
_LOOPBACK = ("localhost", "127.", "::1")


@dataclasses.dataclass(frozen=True)
class Members:
    """This rank's place in a process group."""

    group: Any
    position: int
    ranks: list[int]  # of the world, by position

    def clone_store(self) -> Any:
        """Returns a client of the group's store. A thread that waits in one client blocks the others of that client."""
        store = sys.modules["torch.distributed"].distributed_c10d._world.pg_map[self.group][1]
        return store.clone() if hasattr(store, "clone") else store


def find_members(group: Any = None) -> Members | None:
    """Returns the members of a process group, None for all ranks. Returns None where there is no process group."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        if group is not None:
            raise ValueError("sharding: a group was given, but torch.distributed is not initialized")
        return None
    c10d = distributed.distributed_c10d
    found = c10d._get_default_group() if group is None else group
    if found not in c10d._world.pg_map:
        raise ValueError("sharding: this rank is not a member of the group, or the group has been destroyed")
    return Members(found, distributed.get_rank(found), distributed.get_process_group_ranks(found))


def _timeout_of(group: Any) -> float:
    """Returns the seconds that a collective of the group may wait."""
    for device in group._device_types:
        try:
            return float(group._get_backend(device).options._timeout.total_seconds())
        except (AttributeError, RuntimeError):
            continue
    return _LONGEST_S


# --- Addresses ----------------------------------------------------------------------------------------------------------


def _address_towards(host: str) -> str:
    """Returns this machine's address on the way to a host, an IPv4 one if there is one."""
    found = sorted(socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM), key=lambda each: each[0] != socket.AF_INET)
    error: OSError | None = None
    for family, kind, protocol, _, address in found:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.connect(address)
                return str(probe.getsockname()[0])
        except OSError as reason:
            error = reason
    raise ConnectionError(f"sharding: there is no way from this machine to {host}: {error}")


def _address_of_interface(name: str) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            found = fcntl.ioctl(probe.fileno(), 0x8915, struct.pack("256s", name[:15].encode()))  # SIOCGIFADDR
        except OSError as error:
            raise ConnectionError(f'sharding: GLOO_SOCKET_IFNAME: "{name}" has no IPv4 address: {error}') from None
    return socket.inet_ntoa(found[20:24])


def _master(store: Any) -> str:
    """Returns the machine that has the store, or one that every rank can reach."""
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return getattr(store, "host", None) or os.environ.get("MASTER_ADDR") or socket.gethostname()


def _own_address(members: Members, store: Any, key: str, timeout: float) -> str:
    """Returns the address at which the other ranks reach this one.

    That is the address on the way to the master. A machine's own name may map to a loopback address. The ranks of that
    machine then take their address on the way to a rank elsewhere.
    """
    interface = os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")[0]
    master = _master(store)
    own = _address_of_interface(interface) if interface else _address_towards(master)
    store.set(f"{key}/address/{members.position}", own)
    if not own.startswith(_LOOPBACK) or master.startswith(_LOOPBACK):
        return own
    for other in _read(members, range(len(members.ranks)), store, f"{key}/address", timeout):
        if not other.startswith(_LOOPBACK):
            return _address_towards(other)
    return own


def _read(members: Members, positions: Sequence[int], store: Any, key: str, timeout: float) -> list[str]:
    """Returns the texts at some positions. Asks again and again, so that a signal is handled soon."""
    keys = [f"{key}/{position}" for position in positions]
    deadline = time.monotonic() + timeout
    pause = 0.001
    while not store.check(keys):
        if time.monotonic() > deadline:
            absent = [members.ranks[position] for position, each in zip(positions, keys) if not store.check([each])]
            raise TimeoutError(
                f"sharding: rank {members.ranks[members.position]} has waited {timeout:g} s for ranks that "
                f"have not come: {', '.join(map(str, absent))}"
            )
        time.sleep(pause)
        pause = min(pause * 1.5, 0.05)
    return [store.get(each).decode() for each in keys]


# --- The collective -----------------------------------------------------------------------------------------------------


def wait(function: Callable[..., None], *arguments: Any) -> None:
    """Calls a C function that waits. Raises what a handler of a signal raised meanwhile, as KeyboardInterrupt."""
    try:
        function(*arguments)
    except _core.Interrupted:
        _raise_interruption()


def _raise_interruption() -> NoReturn:
    kind, value, _ = _take_interruption()
    raise (value if isinstance(value, BaseException) else kind) from None


def _take_interruption() -> list[Any]:
    addresses = (ctypes.c_void_p * 3)()
    _interruption(addresses)
    return [ctypes.cast(each, ctypes.py_object).value if each else None for each in addresses]


_made: collections.Counter[Any] = collections.Counter()


class Collective:
    """The connection of this rank to the others of a group. Used by one thread.

    Collective: every rank of the group makes it, in one order with the group's others. Raises TimeoutError with the ranks
    that did not come, ConnectionError with a rank that cannot be reached.
    """

    _handle: Any = None

    def __init__(self, members: Members, timeout: float) -> None:
        self.ranks = members.ranks
        # The members alone count, and count alike. So the key is new, also where a group of this name was destroyed.
        name = (members.group.group_name, tuple(members.ranks))
        self.key = f"lockstep/{_made[name]}"
        _made[name] += 1
        self.store = members.clone_store()
        failure: list[BaseException] = []

        def exchange(own: bytes, positions: Any, count: int, asked: int) -> int:
            try:
                self.store.set(f"{self.key}/{members.position}", own.decode())
                found = _read(members, positions[:count], self.store, self.key, timeout)
                assign_text(asked, "\n".join(found).encode())
                return 0
            except BaseException as error:  # It must not cross the C function's frame.
                failure.append(error)
                return 1

        handle = ctypes.c_void_p()
        self.rank_array = (ctypes.c_int32 * len(self.ranks))(*self.ranks)
        try:
            address = _own_address(members, self.store, self.key, timeout)
            _connect(
                members.position,
                len(self.ranks),
                address.encode(),
                _EXCHANGE(exchange),
                timeout,
                self.rank_array,
                ctypes.byref(handle),
            )
        except RuntimeError:
            if failure:
                raise failure[0] from None
            raise
        self._handle = handle
        _all.add(self)

    @property
    def handle(self) -> Any:
        """The C object. Raises RuntimeError if it is closed."""
        if self._handle is None:
            raise RuntimeError(
                "sharding: this rank's connection to the others is closed: a wait was interrupted, or the "
                "process group was destroyed"
            )
        return self._handle

    @property
    def is_closed(self) -> bool:
        """Whether close was called."""
        return self._handle is None

    def gather(self, data: bytes) -> list[bytes]:
        """Returns the bytes of every rank, which all give equally many."""
        everything = ctypes.create_string_buffer(len(data) * len(self.ranks) + 1)
        self.wait(_gather, self.handle, data, len(data), everything)
        return [everything.raw[i * len(data) : (i + 1) * len(data)] for i in range(len(self.ranks))]

    def gather_texts(self, text: str) -> list[str]:
        """Returns the text of every rank."""
        gathered = ctypes.c_void_p()
        self.wait(_texts, self.handle, text.encode(), ctypes.byref(gathered))
        assert gathered.value is not None
        texts: list[str] = json.loads(_core.take_text(gathered.value))
        return texts

    def wait(self, function: Callable[..., None], *arguments: Any) -> None:
        """Calls a C function that waits for the other ranks. An interrupted wait closes the connection: the other ranks
        then get a ConnectionError that names this one."""
        try:
            function(*arguments)
        except _core.Interrupted:
            self.close()  # the others' answers would meet a later call
            _raise_interruption()
        except (ConnectionError, TimeoutError, RuntimeError):
            raise
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Closes the connection. The other ranks get a ConnectionError if they wait for this one."""
        handle, self._handle = self._handle, None
        if handle is not None:
            _delete(handle)

    def __del__(self, delete: Any = _delete) -> None:  # at the end the module is empty
        if self._handle is not None:
            delete(self._handle)


# A process that fork made must neither write into its parent's connections nor keep them open, by which the other ranks
# see the parent's death: the workers of a DataLoader, for example.
_all: "weakref.WeakSet[Collective]" = weakref.WeakSet()


def _close_in_child() -> None:
    for collective in list(_all):
        collective.close()


os.register_at_fork(after_in_child=_close_in_child)

# A connection ends with its process group, of which torch.distributed has the last reference.
_collectives: "weakref.WeakKeyDictionary[Any, Collective]" = weakref.WeakKeyDictionary()


def collective_of(group: Any = None) -> Collective | None:
    """Returns the connection of a group's ranks, and makes it when it is first asked for. None for a single rank.

    Collective: as Collective, the first time.
    """
    members = find_members(group)
    if members is None or len(members.ranks) == 1:
        return None
    found = _collectives.get(members.group)
    if found is None:
        timeout = _timeout_of(members.group)
        found = Collective(members, timeout if math.isfinite(timeout) else _LONGEST_S)
        _collectives[members.group] = found
    return found
