#!/usr/bin/env python3
"""Writes compile_commands.json at the top of the workspace, for clangd, clang-tidy and editors:

    python3 tests/lint/compile_commands.py

Bazel is asked how it would compile (`bazel aquery`); nothing is built, but headers that a build makes are there
only after one. Run it again when targets or flags change. Git ignores the file.
"""

import json
import re
import subprocess
import sys

import workspace

QUERY = ['mnemonic("CppCompile", //...)', "--output=jsonproto", "--include_artifacts=false", "--keep_going"]

# Options that only gcc knows, and options that only a build needs.
_DROPPED = ("-MD", "-fno-canonical-system-headers")
_DROPPED_WITH_VALUE = ("-MF", "-o")
_DROPPED_PREFIXES = ("-frandom-seed=",)

_EXTERNAL = re.compile(r"^(-I|-isystem|-iquote|)external/")
_OUTPUT = re.compile(r"^(-I|-isystem|-iquote|)bazel-out/")


def _without_build_flags(arguments):
    kept, skip = [], False
    for argument in arguments:
        if skip or argument in _DROPPED_WITH_VALUE:
            skip = not skip
        elif argument not in _DROPPED and not argument.startswith(_DROPPED_PREFIXES):
            kept.append(argument)
    return kept


def _source(arguments):
    return arguments[arguments.index("-c") + 1] if "-c" in arguments[:-1] else None


def _is_host(arguments):
    """Compiled for a tool of the build, with other flags."""
    return any("bazel-out/host/" in a or "-exec-" in a for a in arguments)


def _rank(arguments):
    """Returns a sort key: compilations for the program itself, and not position-independent, come first."""
    return _is_host(arguments), "-fPIC" in arguments


def _absolute(argument, output_base, output_path):
    """Bazel compiles in a folder of links that the next build lays anew; here is what the links lead to."""
    argument = _EXTERNAL.sub(rf"\g<1>{output_base}/external/", argument)
    return _OUTPUT.sub(rf"\g<1>{output_path}/", argument)


def transform(actions, top, output_base, output_path):
    """The entries of compile_commands.json for the `actions` of aquery, one for each source of the workspace `top`."""
    chosen = {}
    for action in actions:
        arguments = action.get("arguments", [])
        source = _source(arguments)
        if source is None or source.startswith(("external/", "bazel-out/", "/")):
            continue
        if source not in chosen or _rank(arguments) < _rank(chosen[source]):
            chosen[source] = arguments
    return [{
        "directory": str(top),
        "file": source,
        "arguments": [_absolute(a, output_base, output_path) for a in _without_build_flags(chosen[source])],
    } for source in sorted(chosen)]


def _bazel(top, *arguments):
    """Returns Bazel's output. If single targets fail (--keep_going), it has the others'."""
    result = subprocess.run(["bazel", *arguments], cwd=top, stdout=subprocess.PIPE, text=True, check=False)
    if not result.stdout:
        sys.exit(f"compile_commands: `bazel {' '.join(arguments)}` printed nothing and ended with {result.returncode}")
    return result.stdout


def main():
    top = workspace.root()
    actions = json.loads(_bazel(top, "aquery", *QUERY))["actions"]
    output_base, output_path = (_bazel(top, "info", name).strip() for name in ("output_base", "output_path"))
    entries = transform(actions, top, output_base, output_path)
    path = top / "compile_commands.json"
    path.write_text(json.dumps(entries, indent=1) + "\n")
    print(f"{path}: {len(entries)} files")


if __name__ == "__main__":
    main()
