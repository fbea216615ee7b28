"""watch: names the ranks, lines of Python and collectives of a hang. The package has it as lockstep.watch.

A thread in each rank samples where the main thread is. It never asks the main thread for anything, which may hang, and it
never uses a collective. The ranks' threads talk through the store of the process group, over a client of their own.

    key               value
    watch/state/RANK  JSON of _State, written every second
    watch/reports     the number of reports so far
    watch/era         grows when the rank that was to write a report saw that the run goes on
    watch/report/N/E/T  counts the ranks that wanted to write report N in era E and turn T: the first one does
    watch/verdict     exists when all ranks must end
"""

import atexit
import dataclasses
import datetime
import json
import os
import sys
import threading
import time
import weakref
from types import FrameType
from typing import Any

from lockstep import _core, _places, _sockets

EXIT_CODE = 3  # as of the program `lockstep` when ranks hang (docs/cluster.md)
_SAMPLES_S = 0.2
_WRITE_S = 1.0
_SILENT_S = 30.0  # a thread that has written nothing for so long, or for `timeout`, is stopped, or its process is dead
_LEAST_CPU = 0.02  # share of the main thread's time on a CPU from which it computes, on a machine that others use, too
_STORE_S = 20.0  # how long the store may take to answer
_WATCHERS: list["_Watcher"] = []

# Functions that wait in a loop: what they call in it is no progress.
_WAITS = {
    ("dataloader.py", "_get_data"),
    ("connection.py", "wait"),
    ("connection.py", "_poll"),
    ("queues.py", "get"),
    ("queue.py", "get"),
    ("threading.py", "wait"),
    ("threading.py", "join"),
    ("selectors.py", "select"),
    ("subprocess.py", "wait"),
    ("popen_fork.py", "wait"),
    ("_sockets.py", "_read"),
}
_OWN = {
    "_decide": "agreement of sharding.lockstep",
    "check": "check of sharding.Guard",
    "_own_address": "meeting of sharding",
    "gather": "sharding.weighted_mean",
    "gather_texts": "comparison of sharding.dataset",
}


@dataclasses.dataclass
class _State:
    """What the other ranks know about one rank."""

    beat: int = 0  # grows with every writing
    stuck_s: float = 0.0  # since its last progress
    place: str = ""  # line of the user's program
    collective: str = ""  # in which it waits; "" for none
    sequence: dict[str, int] = dataclasses.field(default_factory=dict)  # collectives begun, by group
    groups: dict[str, list[int]] = dataclasses.field(default_factory=dict)
    process: str = ""
    ended: bool = False


# --- Looking at a thread ------------------------------------------------------------------------------------------------


def _stack(frame: FrameType | None) -> list[FrameType]:
    """Returns the frames from the outermost to the innermost."""
    frames = []
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    return frames[::-1]


def _signature(frames: list[FrameType]) -> tuple[Any, ...]:
    """Returns what changes when a thread makes progress. Holds no frame."""
    seen: list[Any] = []
    for frame in frames:
        name, function = os.path.basename(frame.f_code.co_filename), frame.f_code.co_name
        if (name, function) in _WAITS:
            seen.append((name, function))
            break
        seen.append((frame.f_code.co_filename, frame.f_lineno, frame.f_lasti))
    return tuple(seen)


def _collective_of(frames: list[FrameType]) -> str:
    """Returns the collective that the stack is in: "all_reduce float32 [4]", or "" for none."""
    inner: FrameType | None = None
    for frame in frames:
        if _places.is_own(frame) and frame.f_code.co_name in _OWN:
            return _OWN[frame.f_code.co_name]
        if os.path.basename(frame.f_code.co_filename) == "distributed_c10d.py" and frame.f_code.co_name != "wrapper":
            inner = frame
    if inner is None:
        # What DDP and autograd wait for in C++ has no frame of Python.
        return "backward" if any(frame.f_code.co_name == "_engine_run_backward" for frame in frames) else ""
    found = ""
    for value in list(inner.f_locals.values()):
        tensor = value[0] if isinstance(value, (list, tuple)) and value else value
        if hasattr(tensor, "untyped_storage"):
            found = f" {str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
            break
    return inner.f_code.co_name + found


def _place_of(frames: list[FrameType]) -> str:
    users = [frame for frame in frames if _places.is_users(frame)]
    return _places.describe((users or frames)[-1]) if frames else ""


# --- The table ----------------------------------------------------------------------------------------------------------


def _row(rank: int, state: _State | None, silent_s: float, limit_s: float) -> str:
    if state is None:
        return f"  rank {rank}: has not called lockstep.watch"
    if state.ended:
        return f"  rank {rank}: has ended, or has destroyed its process group"
    begun = ", ".join(
        f"{count} of {_group_name(name, state)}" for name, count in sorted(state.sequence.items()) if count
    )
    row = f"  rank {rank}: {'in ' + state.collective if state.collective else 'in no collective'}"
    if silent_s >= limit_s:
        return (
            f"  rank {rank}: no sign of life for {silent_s:.0f} s: {state.process} is dead or stopped, or its machine is "
            f"lost; it was last at {state.place}"
        )
    return f"{row} at {state.place}, for {state.stuck_s:.0f} s; collectives begun: {begun or 'none'}"


def _group_name(name: str, state: _State) -> str:
    ranks = state.groups.get(name, [])
    return "all ranks" if name == "0" else f"ranks {', '.join(map(str, ranks[:8]))}{', ...' if len(ranks) > 8 else ''}"


def _culprits(states: list[_State | None], silent: list[float], limit_s: float) -> tuple[list[int], str]:
    """Returns the ranks that the others most likely wait for, and why."""
    alive = [rank for rank, state in enumerate(states) if state is not None]
    gone = [rank for rank in alive if not states[rank].ended and silent[rank] >= limit_s]  # type: ignore[union-attr]
    if gone:
        return gone, "gives no sign of life"
    ended = [rank for rank in alive if states[rank].ended]  # type: ignore[union-attr]
    if ended:
        return ended, "has ended"
    for name in sorted({name for rank in alive for name in states[rank].sequence}):  # type: ignore[union-attr]
        counts = {rank: states[rank].sequence[name] for rank in alive if name in states[rank].sequence}  # type: ignore
        behind = [rank for rank, count in counts.items() if count == min(counts.values())]
        if len(set(counts.values())) > 1:
            return behind, "is behind"
    outside = [rank for rank in alive if not states[rank].collective]  # type: ignore[union-attr]
    if outside and len(outside) < len(alive):
        return outside, "is in no collective"
    return [], ""


def describe(states: list[_State | None], silent: list[float], timeout: float) -> str:
    """Returns the report of a hang. states: by rank. silent: for how many seconds a rank's thread has written nothing."""
    limit_s = min(_SILENT_S, timeout)
    ranks, why = _culprits(states, silent, limit_s)
    named = ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")
    cause = f"rank{'s' if len(ranks) > 1 else ''} {named} {why}: the likely cause" if ranks else "no rank is behind"
    rows = "\n".join(_row(rank, state, silent[rank], limit_s) for rank, state in enumerate(states))
    return f"lockstep.watch: no rank has made progress for {timeout:g} s; {cause}. What each rank is doing:\n{rows}\n"


# --- The thread ---------------------------------------------------------------------------------------------------------


class _Watcher:
    """The thread of this rank. All attributes belong to it once it runs, except `leaving`."""

    def __init__(self, timeout: float, on_hang: str, members: _sockets.Members) -> None:
        self._timeout = timeout
        self._ends = on_hang == "exit"
        self._group = weakref.ref(members.group)  # which must end when the trainer destroys it
        self._rank = members.position
        self._size = len(members.ranks)
        c10d = sys.modules["torch.distributed"].distributed_c10d
        self._world = c10d._world
        self._store = c10d.PrefixStore("lockstep/watch", members.clone_store())
        if hasattr(self._store, "set_timeout"):
            self._store.set_timeout(datetime.timedelta(seconds=_STORE_S))
        self._main = threading.main_thread().ident
        self._state = _State(process=f"process {os.getpid()} on {os.uname().nodename}")
        self._signature: Any = None
        self._since = time.monotonic()  # of the last progress
        self._cpu = 0.0  # of the main thread at the last look
        self._looked = self._since
        self._reports = 0  # at the last progress
        self._beats: dict[int, tuple[int, float]] = {}  # of other ranks: the last one, and when it came
        self._reports_now = False  # this rank writes the report
        self._asked: set[str] = set()  # the turn for which this rank asked last
        self.leaving = threading.Event()
        self.thread = threading.Thread(target=self._run, name="lockstep.watch", daemon=True)
        self._look()
        self._write()  # before the rank can hang
        self.thread.start()

    def _run(self) -> None:
        next_write = 0.0
        while not self.leaving.wait(_SAMPLES_S):
            try:
                if self._has_ended():
                    break
                self._look()
                if time.monotonic() >= next_write:
                    next_write = time.monotonic() + _WRITE_S
                    self._talk()
            except Exception as error:  # The store is lost. The thread must survive it, to say so when the rank hangs.
                if not self._has_ended() and time.monotonic() - self._since >= self._timeout:
                    self._end(describe_alone(self._rank, self._state, self._timeout, error))
                    return
        try:
            self._state.ended = True
            self._write()
        except Exception:  # The store has ended with its process, and with it those who would read this.
            pass

    def _has_ended(self) -> bool:
        group = self._group()
        return group is None or group not in self._world.pg_map

    def _look(self) -> None:
        frames = _stack(sys._current_frames().get(self._main or 0))
        sequence = self._sequence()
        cpu = self._main_cpu_s()
        signature = (_signature(frames), tuple(sorted(sequence.items())))
        now = time.monotonic()
        # The CPU's time of the main thread tells computing from waiting, unless waiting for a GPU uses it, too.
        computes = cpu - self._cpu > _LEAST_CPU * (now - self._looked) and not self._uses_gpu()
        if signature != self._signature or computes:
            self._since = now
        self._signature, self._cpu, self._looked = signature, cpu, now
        state = self._state
        state.stuck_s = round(now - self._since, 1)
        state.sequence = sequence
        state.place = _place_of(frames)
        # A look at a frame's variables keeps them alive. So only once the rank seems to hang.
        state.collective = _collective_of(frames) if state.stuck_s > min(self._timeout / 2, 10) else ""

    def _sequence(self) -> dict[str, int]:
        counts = {}
        for group in list(self._world.pg_map):
            try:
                counts[group.group_name] = group._get_sequence_number_for_group()
            except RuntimeError:  # A backend that does not count.
                continue
            self._state.groups.setdefault(group.group_name, list(self._world.pg_group_ranks.get(group, {})))
        return counts

    def _main_cpu_s(self) -> float:
        try:
            return time.clock_gettime(time.pthread_getcpuclockid(self._main or 0))
        except OSError:
            return 0.0

    def _uses_gpu(self) -> bool:
        cuda = sys.modules.get("torch.cuda")
        return cuda is not None and cuda.is_initialized()

    def _write(self) -> None:
        self._state.beat += 1
        self._store.set(f"state/{self._rank}", json.dumps(dataclasses.asdict(self._state)))

    def _talk(self) -> None:
        self._write()
        stuck_s = time.monotonic() - self._since
        if self._ends and self._store.check(["verdict"]):
            self._end("")
        if stuck_s < self._timeout / 2:
            self._reports = self._store.add("reports", 0)
            self._beats.clear()
            if self._reports_now:
                self._store.add("era", 1)
            self._reports_now = False
        elif stuck_s >= self._timeout and self._claims(int(stuck_s // self._timeout)):
            self._consider()

    def _claims(self, turn: int) -> bool:
        """Returns whether this rank writes the report. If the first rank to want it dies, another one has its turn."""
        if self._store.add("reports", 0) != self._reports:
            return False  # of this hang there is a report
        if not self._reports_now:
            turn_key = f"report/{self._reports}/{self._store.add('era', 0)}/{turn}"
            if turn_key not in self._asked:
                self._asked = {turn_key}
                self._reports_now = self._store.add(turn_key, 1) == 1
        return self._reports_now

    def _consider(self) -> None:
        """Writes the report once it is sure that no rank makes progress."""
        now = time.monotonic()
        states: list[_State | None] = []
        silent = []
        for rank in range(self._size):
            key = f"state/{rank}"
            state = _State(**json.loads(self._store.get(key))) if self._store.check([key]) else None
            beat, since = self._beats.get(rank, (-1, now))
            if state is not None and state.beat != beat:
                self._beats[rank] = (state.beat, now)
                since = now
            elif state is None:
                self._beats.setdefault(rank, (-1, now))
            states.append(state)
            silent.append(now - since)
        for rank, state in enumerate(states):
            # A thread is silent, too, while its main thread holds the interpreter's lock, as in a long sort.
            if state is None or state.ended or silent[rank] >= min(self._timeout, max(_SILENT_S, self._timeout / 2)):
                continue
            if silent[rank] > 2 * _WRITE_S or state.stuck_s < self._timeout - _WRITE_S:
                return
        if (
            all(state is None or state.ended for rank, state in enumerate(states) if rank != self._rank)
            and self._size > 1
            and not self._state.collective
        ):
            return  # The others have ended, and this rank waits for none of them as far as one can see.
        self._store.add("reports", 1)
        if self._ends:
            self._store.set("verdict", "hang")
        self._end(describe(states, silent, self._timeout))

    def _end(self, report: str) -> None:
        """Writes a report, and ends the process unless on_hang is "report"."""
        if report:
            sys.stderr.write(report)
            sys.stderr.flush()
        if not self._ends:
            return
        # Until all ranks know. A rank that lost another one's connection before would print an error of its own.
        time.sleep(2 * _WRITE_S if report else _WRITE_S)
        # They would live on, and hold what this process has open: the workers of a DataLoader.
        multiprocessing = sys.modules.get("multiprocessing")
        for child in multiprocessing.active_children() if multiprocessing is not None else ():
            child.kill()
        # The main thread may hang in the midst of a print, and then no other can flush.
        flush = threading.Thread(target=sys.stdout.flush, daemon=True)
        flush.start()
        flush.join(1)
        os._exit(EXIT_CODE)


def describe_alone(rank: int, state: _State, timeout: float, error: Exception) -> str:
    """Returns the report of a rank that cannot reach the store."""
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    return (
        f"lockstep.watch: rank {rank} has made no progress for {timeout:g} s, and the store of its process group does not "
        f"answer, which may have ended with rank 0: {reason}\n{_row(rank, state, 0.0, timeout)}\n"
    )


def watch(timeout: float = 120, on_hang: str = "exit") -> None:
    """Ends a run that hangs, with a table of each rank's line of Python and collective.

    The failure this prevents. Ranks wait for each other, and the GPUs stay at 100 % until a timeout ends the run half an
    hour later with an error that names neither the rank that did not come nor what it does instead.

        torch.distributed.init_process_group()
        lockstep.watch(timeout=120)

        lockstep.watch: no rank has made progress for 120 s; rank 1 is behind: the likely cause. What each rank is doing:
          rank 0: in all_reduce float32 [4] at train.py:12, for 121 s; collectives begun: 7 of all ranks
          rank 1: in no collective at train.py:30, for 125 s; collectives begun: 6 of all ranks

    timeout: seconds. on_hang: "exit" prints the table once and ends every rank with exit code 3. "report" prints it and lets
    the run go on.

    A thread looks at the main thread five times a second. Progress is another line, another instruction in one of the
    functions that run, another collective, or, without a GPU, time of the CPU. There is a report when every rank that lives
    and has not ended has made no progress for `timeout`: a rank that computes is no hang, however long the others wait for
    it. One call of C++ that takes longer than `timeout` on a GPU, or a read of a file that does, looks like a hang: give
    more. Ends with the process group. A second call replaces the first.

    Call it on every rank, after init_process_group. It does not wait for the other ranks. Does nothing on one
    rank alone. Raises RuntimeError if a launcher has set WORLD_SIZE and there is no process group yet; ValueError for an
    option out of range.
    """
    limit = _core.number(timeout, "timeout")
    if limit <= 0:
        raise ValueError(f"watch: timeout must be more than 0 s, not {limit:g}")
    if on_hang not in ("exit", "report"):
        raise ValueError(f'watch: on_hang must be "exit" or "report", not {on_hang!r}')
    unwatch()
    members = _sockets.find_members()
    if members is None and os.environ.get("WORLD_SIZE", "1") != "1":
        raise RuntimeError(
            f"watch: WORLD_SIZE is {os.environ['WORLD_SIZE']}, but there is no process group: call watch after "
            "torch.distributed.init_process_group"
        )
    if members is None or len(members.ranks) == 1:
        return
    _WATCHERS.append(_Watcher(limit, on_hang, members))


@atexit.register
def unwatch() -> None:
    """Ends the watch of this rank. Waits for the thread for at most two seconds."""
    while _WATCHERS:
        watcher = _WATCHERS.pop()
        watcher.leaving.set()
        watcher.thread.join(2)
