"""Child processes that a limit ends, and whose lines "name value" count as soon as they are printed."""

import os
import select
import signal
import sys
import time
import traceback


class Interrupted(Exception):
    """A signal came, which the exception names."""


class Process:
    """Runs a function, or a command in `folder`, in a process group of its own. Returns when it has ended.

    With a `label` it prints each figure, and each remark, a line that begins with #, as soon as it is there.
    """

    signals = []  # names of those that came; only a place that expects an exception raises one

    def __init__(self, work, deadline, environment=None, folder=".", label=""):
        self.figures, self.lines, self.problem, self.label = {}, [], "", label
        sys.stdout.flush()
        source, sink = os.pipe()
        self.pid = os.fork()  # a fork has torch already, and saves the seconds of its import
        if self.pid == 0:
            run_child(work, environment, folder, sink)
        make_group(self.pid)  # the child does so, too: whoever comes first
        os.close(sink)
        try:
            code = self.read(source, deadline)
            self.problem = "took longer than its limit" if code is None else f"exit code {code}" if code else ""
        finally:
            os.close(source)
            self.end()

    def ended(self):
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)

    def read(self, source, deadline):
        """Returns the exit code, or None if the deadline came first."""
        rest = ""
        while time.monotonic() < deadline:
            if self.signals:
                raise Interrupted(self.signals[0])
            if select.select([source], [], [], 0.05)[0]:
                data = os.read(source, 65536)
                *whole, rest = (rest + data.decode(errors="replace")).split("\n")
                for line in whole:
                    self.take(line)
                if data:
                    continue
                time.sleep(0.01)
            if status := self.ended():
                return status.si_status
        return None

    def take(self, line):
        name, _, value = line.strip().rpartition(" ")
        try:
            self.figures[name.strip()] = float(value)
        except ValueError:
            self.lines.append(line)
            if not line.startswith("# "):
                return
        if self.label:
            print(f"    {self.label}: {line.removeprefix('# ')}", flush=True)

    def end(self):
        """Ends the whole group. A launcher gets 3 seconds to end its ranks."""
        for ending in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self.pid, ending)
            except ProcessLookupError:
                break
            until = time.monotonic() + 3
            while ending == signal.SIGTERM and not self.ended() and time.monotonic() < until:
                time.sleep(0.02)
        os.waitpid(self.pid, 0)


def stop_at_signals():
    """Makes SIGINT and SIGTERM end the process that runs, and raise Interrupted."""
    for one in (signal.SIGINT, signal.SIGTERM):
        signal.signal(one, lambda number, _: Process.signals.append(signal.Signals(number).name))


def make_group(pid):
    try:
        os.setpgid(pid, pid)
    except OSError:  # it has one, and runs its program, or has ended
        pass


def run_child(work, environment, folder, sink):
    code = 1
    try:
        make_group(0)
        for one in (signal.SIGINT, signal.SIGTERM):
            signal.signal(one, signal.SIG_DFL)
        os.dup2(sink, 1)
        os.dup2(sink, 2)
        if not callable(work):
            os.chdir(folder)
            os.execve(work[0], work, environment)
        work()
        code = 0
    except BaseException:  # the child must not go on as its parent does
        traceback.print_exc(file=sys.stdout)
    finally:
        sys.stdout.flush()
        os._exit(code)
