"""Holds the layer rules of the design: layers.py [WORKSPACE] prints every breach and exits with 1 if there is one.

1. A library depends on base/ and on nothing else of ours: no other library, no driver, no Lua. base/ depends on nothing of ours.
2. The core of a library, //x, knows nothing of libtorch; //x, //x:torch and //x:cuda (its code
   for GPUs) are its only public targets.
3. What talks to c10d, to Gloo or to `_`-prefixed ATen operators is one file (.h and .cc) of each library.
   ProcessGroup.hpp, Store.hpp and Types.hpp do not count: they name what a caller hands over.
4. In driver/ only lua/bind/<library>/ includes a library's headers; ranks/ and watching/ build on sharding, too. Tests may include more.
   A library includes no header of ours but its own. A binding translates: it calls no store, sends no messages and locks no file.
5. scripts/ and driver/lualib/lockstep/ are Lua, and what the tests there read; scripts depend on the driver alone, and
   require its public modules: lockstep.core is private to the Lua library.
6. python/ builds on the libraries' public targets and on base/. Only python/wheel, which packs the program, and tests depend on driver/.
7. The rooms of driver/ stand on floors: readers of files, the runtime, Lua, the program. No room includes one of a floor above it,
   and no folders include each other in a circle.

Transitive dependencies are Bazel's to know: see transitive_test.py.
"""

import pathlib
import re
import sys

import workspace

# From the ground up. A new room of driver/ gets its floor here.
FLOORS = (
    ("files", "data", "text", "images"),
    ("settings", "network", "keep", "watching", "cuda", "graph", "products", "terminal", "ranks"),
    ("lua", "lualib"),
    ("launch", "package"),
)
LIBRARIES = ("batching", "sharding", "checkpoint", "tiled_mlp", "mimo", "kernels")
_LOW = LIBRARIES + ("base",)  # what knows no driver and no Lua

_TORCH_HEADERS = re.compile(r"(ATen|c10|caffe2|torch)/")
_LUA_HEADERS = re.compile(r"(lua|lualib|lauxlib|luajit)\.h(pp)?$")
_UNSTABLE_HEADERS = re.compile(r"torch/csrc/distributed/(?!c10d/(ProcessGroup|Store|Types)\.hpp$)|gloo/|ATen/ops/_")
_UNSTABLE_NAMES = re.compile(r"\bat::_[a-z]")
_BINDING_LOGIC = re.compile(r"\bstore(?:->|\.)\w+\(|->(?:send|recv)\(|\b(?:flock|fcntl|lockf)\(")
_INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]')


def includes(text):
    """(line, header) of each #include."""
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        match = _INCLUDE.match(line)
        if match:
            found.append((number, match.group(1)))
    return found


def _top(path):
    return path.split("/", 1)[0]


def _is_source(path):
    return path.endswith((".cc", ".h", ".cu", ".cuh"))


def _stem(path):
    """batching/plan.cc and batching/plan.h are one; their tests are others."""
    return path.rsplit(".", 1)[0]


def check_dependencies(top):
    """Rules 1, 2, 5 and 6, as far as BUILD files say them."""
    for path, rule in workspace.build_rules(top):
        library = _top(path) if _top(path) in _LOW else None
        labels = [workspace.absolute(s, rule.package) for s in rule.strings() if re.match(r"(:|//|@)\S*$", s)]
        where = f"{path}:{rule.line}"
        for label in labels:
            package = _top(label[2:].split(":")[0]) if label.startswith("//") else None
            forbidden = [x for x in LIBRARIES if x != library] + ["driver", "scripts"]
            if library and (package in forbidden or label.startswith("@luajit")):
                yield f"{where}: {library} depends on {label}; a library depends on base/ and on nothing else of ours, and not on Lua"
            if _top(path) == "python" and package == "driver" and rule.package not in ("python/wheel", "python/tests"):
                yield f"{where}: {rule.package} depends on {label}; the Python package builds on the libraries, not on the driver"
            if _top(path) == "scripts" and label.startswith("@") or \
                    _top(path) == "scripts" and package not in (None, "scripts", "driver", "visibility"):
                yield f"{where}: scripts depend on {label}; they depend on //driver alone"
        if library:
            yield from _check_visibility(where, library, rule)


def _check_visibility(where, library, rule):
    is_public = "//visibility:public" in rule.strings("visibility", "default_visibility")
    is_api = rule.package == library and rule.name in (library, "torch", "cuda")
    if is_public and not is_api:
        yield (f"{where}: {rule.name or 'the package'} is public; the public targets of a library are //{library}"
               f", //{library}:torch and //{library}:cuda, all else is private")


def check_core(top):
    """Rule 2: neither the core's deps nor the headers that its files include are libtorch's."""
    by_label = {}
    for path, rule in workspace.build_rules(top):
        if rule.name:
            by_label[f"//{rule.package}:{rule.name}"] = (path, rule)
    for library in LIBRARIES:
        pending, seen = [f"//{library}:{library}"], set()
        while pending:
            label = pending.pop()
            if label in seen or label not in by_label:
                continue
            seen.add(label)
            path, rule = by_label[label]
            for dep in rule.strings("deps"):
                dep = workspace.absolute(dep, rule.package)
                if dep.startswith("@libtorch") or dep == f"//{library}:torch":
                    yield f"{path}:{rule.line}: the core {label} depends on {dep}; that is for //{library}:torch"
                pending.append(dep)
            yield from _check_core_sources(top, rule, label)


def _check_core_sources(top, rule, label):
    for name in rule.strings("srcs", "hdrs"):
        source = pathlib.Path(top) / rule.package / name.lstrip(":")
        if not source.is_file():
            continue
        for line, header in includes(source.read_text()):
            if _TORCH_HEADERS.match(header):
                yield f"{rule.package}/{name}:{line}: includes {header}; the core {label} knows nothing of libtorch"


# Rooms of driver/ that build on a library, besides its binding.
_ROOMS_ON = {"sharding": ("ranks/", "watching/")}


def _may_include(path, library):
    is_test = _stem(path).endswith("_test") and not path.startswith("driver/lua")
    rooms = (f"lua/bind/{library}/", *_ROOMS_ON.get(library, ()))
    return is_test or path.startswith(tuple(f"driver/{room}" for room in rooms))


def check_includes(top):
    """Rules 1, 3 and 4, as the sources say them."""
    unstable = {}
    for path in filter(_is_source, workspace.files(top)):
        text = (pathlib.Path(top) / path).read_text()
        folder = _top(path)
        library = folder if folder in _LOW else None
        for line, header in includes(text):
            where = f"{path}:{line}: includes {header}"
            owner = _top(header) if "/" in header else None
            if header == "torch/torch.h":
                yield f"{where}, which takes a minute to compile; include what is used"
            is_ours = owner in LIBRARIES + ("driver", "scripts")
            if library and (_LUA_HEADERS.search(header) or is_ours and owner != library):
                yield f"{where}; {library} knows no other library, no driver and no Lua"
            if folder == "driver" and owner in LIBRARIES and not _may_include(path, owner):
                yield f"{where}; only driver/{' and driver/'.join([f'lua/bind/{owner}/', *_ROOMS_ON.get(owner, ())])} may"
            if library and _UNSTABLE_HEADERS.match(header):
                unstable.setdefault(library, {}).setdefault(_stem(path), f"{path}:{line}")
        for match in _BINDING_LOGIC.finditer(text) if path.startswith("driver/lua/bind/") else ():
            line = text.count("\n", 0, match.start()) + 1
            yield f"{path}:{line}: {match[0]}...) is more than a translation; give the library, or driver/, a function with a C++ test"
        for match in _UNSTABLE_NAMES.finditer(text) if library else ():
            line = text.count("\n", 0, match.start()) + 1
            unstable.setdefault(library, {}).setdefault(_stem(path), f"{path}:{line}")
    for library, stems in unstable.items():
        tests = {s for s in stems if s.endswith(("_test", "_benchmark"))}
        if len(set(stems) - tests) > 1:
            places = ", ".join(stems[s] for s in sorted(set(stems) - tests))
            yield f"{library}: c10d, Gloo and `_`-prefixed operators are one file's of a library, but {places} use them"


def _floor(folder):
    """The floor of a folder in driver/, main.cc is above all; None for a folder that has none."""
    parts = folder.split("/")
    return len(FLOORS) if len(parts) == 1 else next((i for i, rooms in enumerate(FLOORS) if parts[1] in rooms), None)


def check_floors(top):
    """Rule 7, from the includes of driver/'s sources, without tests."""
    arrows = {}  # (folder, folder) to the first include
    for path in filter(_is_source, workspace.files(top)):
        if not path.startswith("driver/") or _stem(path).endswith("_test"):
            continue
        folder = path.rsplit("/", 1)[0]
        if _floor(folder) is None:
            yield f"{path}: the room {'/'.join(folder.split('/')[:2])} has no floor; give it one in FLOORS of tests/lint/layers.py"
            continue
        for line, header in includes((pathlib.Path(top) / path).read_text()):
            if not header.startswith("driver/"):
                continue
            other = header.rsplit("/", 1)[0]
            arrows.setdefault((folder, other), f"{path}:{line}")
            if (_floor(other) or 0) > _floor(folder):
                yield f"{path}:{line}: includes {header}; {folder} lies on a floor below {other}"
    yield from _circles(arrows)


def _circles(arrows):
    """One line for each folder that leads back to itself."""
    below = {}
    for folder, other in arrows:
        if folder != other:
            below.setdefault(folder, set()).add(other)
    for start in sorted(below):
        ways, pending = {start: None}, [start]
        while pending:
            folder = pending.pop()
            for other in sorted(below.get(folder, ())):
                if other == start:
                    way = [folder]
                    while ways[way[-1]]:
                        way.append(ways[way[-1]])
                    if start == min(way):
                        yield f"{arrows[folder, start]}: closes a circle of folders: {' -> '.join(way[::-1] + [start])}"
                    pending = []
                    break
                if other not in ways:
                    ways[other] = folder
                    pending.append(other)


def check_lua_folders(top):
    """Rule 5: a model, a recipe, a schedule is Lua. scripts/launch/ has the files of clusters."""
    for path in workspace.files(top):
        if path.startswith(("scripts/", "driver/lualib/lockstep/")) and not path.startswith("scripts/launch/"):
            is_test_data = path.startswith("driver/lualib/lockstep/") and path.endswith((".jinja", ".json"))
            if not (path.endswith((".lua", ".md")) or is_test_data or workspace.is_build_file(path)):
                yield f"{path}: {'scripts' if path.startswith('scripts') else 'driver/lualib/lockstep'} holds Lua"


def check_scripts(top):
    """Rule 5: a user copies a script, and may rely on public modules alone."""
    for path in workspace.files(top):
        if path.startswith("scripts/") and path.endswith(".lua"):
            text = (pathlib.Path(top) / path).read_text()
            for found in re.finditer(r"""["']lockstep\.core[\w.]*["']""", text):
                line = text.count("\n", 0, found.start()) + 1
                yield f"{path}:{line}: requires {found[0]}, which is private; lockstep.files and lockstep.data are public"


def check(top):
    return sorted([*check_dependencies(top), *check_core(top), *check_includes(top), *check_floors(top), *check_lua_folders(top), *check_scripts(top)])


if __name__ == "__main__":
    problems = check(sys.argv[1] if len(sys.argv) > 1 else workspace.root())
    print("\n".join(problems))
    sys.exit(1 if problems else 0)
