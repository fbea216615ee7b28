"""Checks the form of source files: sources.py [WORKSPACE] prints every breach and exits with 1 if there is one.

A header begins with a comment that says what it is for, and has an include guard that spells its path
(headers under third_party may say #pragma once instead). Two headers define no type of one name in one
namespace: a file that includes both would not compile. at::parallel_for is called in one file, which is compiled
with OpenMP: elsewhere it runs on one thread, with no error. C++ reads the clock on the wall only to write down a time:
a deadline by that clock ends early, or hours late, when the clock is set. Python is started with -I where a command
names no script (-c, -m, -): it would load modules from the folder where the user stands.

Advice is printed and fails nothing: files of more than 500 lines, save those that a program wrote, and folders of
more than 30 files. A thing is never cut in two to fit.
"""

import collections
import pathlib
import re
import sys

import workspace

MAX_LINES = 500
MAX_FILES = 30
# Beginnings of the paths that driver/lualib/types/generate.lua writes.
GENERATED = ("driver/lualib/types/torch.lua", "driver/lualib/types/torch_internal.lua", "driver/lualib/types/core")

PARALLEL = "kernels/aten/parallel.cc"

# A name for a folder, a time in a log, and the test's clock.
WALL_CLOCK = ("driver/launch/rank.cc", "driver/files/event_file.cc", "tests/support/jumping_clock.cc")
_WALL_CLOCK = re.compile(r"absl::Now\(|\bsystem_clock\b|\bCLOCK_REALTIME|\bgettimeofday\(|\bstd::time\(|\b(?:sem_timed|"
                         r"pthread_cond_timed)wait\(|\bpthread_mutex_timedlock\(")

_NAMESPACE = re.compile(r"^namespace ([\w:]+) \{", re.M)
_TYPE = re.compile(r"^(?:struct|class|enum class) (\w+)(?: final)?(?: : [^;{]*)? \{", re.M)
_CPP = (".cc", ".h", ".cu", ".cuh")
_TEXT = (*_CPP, ".lua", ".py", ".bzl", ".sh")
# Commands of shells, in files that may have no ending: ./run, Dockerfile.
_PYTHON = re.compile(r"(?<![\w.])python3?[\"')]*(?: -[A-Za-z]+)* (?:-[A-Za-z]*[cm]|-)(?= )")


def line_of(text, match):
    return text.count("\n", 0, match.start()) + 1


def guard_of(path):
    return "LOCKSTEP_" + re.sub(r"[^A-Za-z0-9]", "_", path).upper() + "_"


def check_header(path, text):
    lines = text.splitlines()
    if not lines or not lines[0].startswith("// ") or len(lines[0].split()) < 3:
        yield f"{path}:1: a header begins with a comment that says what it is for"
    directives = [(n, line.strip()) for n, line in enumerate(lines, 1) if line.startswith("#")]
    if path.startswith("third_party/") and directives and directives[0][1] == "#pragma once":
        return
    guard = guard_of(path)
    expected = [f"#ifndef {guard}", f"#define {guard}"]
    if [d for _, d in directives[:2]] != expected or not lines[-1].startswith(f"#endif  // {guard}"):
        line = directives[0][0] if directives else 1
        yield f"{path}:{line}: the include guard of this path is {guard}, at the top and behind the last #endif"


def check_types(headers):
    """`headers`: text by path."""
    homes = {}
    for path, text in sorted(headers.items()):
        namespace = _NAMESPACE.search(text)
        for match in _TYPE.finditer(text):
            name = f"{namespace[1]}::{match[1]}" if namespace else match[1]
            home = homes.setdefault(name, path)
            if home != path:
                yield f"{path}:{line_of(text, match)}: defines {name}, as {home} does"


def check(top):
    problems = []
    headers = {}
    for path in workspace.files(top):
        if pathlib.PurePath(path).suffix in (".sh", ".lua", "") and not path.startswith(".git"):
            text = (pathlib.Path(top) / path).read_text(errors="replace")
            problems += [f"{path}:{line_of(text, found)}: {found[0]} loads modules from the current folder; add -I"
                         for found in _PYTHON.finditer(text) if " -I" not in found[0]]
        if not path.endswith(_TEXT) or path.startswith(GENERATED):
            continue
        text = (pathlib.Path(top) / path).read_text()
        if path.endswith((".h", ".cuh")):
            problems += check_header(path, text)
            headers[path] = text
        if path.endswith(_CPP) and path != PARALLEL and "at::parallel_for(" in text:
            problems.append(f"{path}: calls at::parallel_for; call ParallelFor of kernels/aten/parallel.h")
        for found in _WALL_CLOCK.finditer(text) if path.endswith(_CPP) and path not in WALL_CLOCK else ():
            problems.append(f"{path}:{line_of(text, found)}: {found[0].rstrip('(')} is the clock on the wall, which "
                            "can be set; wait with base/deadline.h, and measure with std::chrono::steady_clock")
    return sorted([*problems, *check_types(headers)])


def advice(top):
    """What is large: is it one thing?"""
    paths = workspace.files(top)
    folders = collections.Counter(str(pathlib.PurePath(path).parent) for path in paths)
    found = [f"{folder}: has {count} files; is it one concept?" for folder, count in folders.items() if count > MAX_FILES]
    for path in paths:
        if path.endswith(_TEXT) and not path.startswith(GENERATED):
            length = (pathlib.Path(top) / path).read_text().count("\n")
            if length > MAX_LINES:
                found.append(f"{path}: has {length} lines; is it one thing?")
    return sorted(found)


if __name__ == "__main__":
    top = sys.argv[1] if len(sys.argv) > 1 else workspace.root()
    problems = check(top)
    print("\n".join([*problems, *(f"advice: {line}" for line in advice(top))]))
    sys.exit(1 if problems else 0)
