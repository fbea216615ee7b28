"""The files of a workspace and its BUILD files, read without Bazel."""

import ast
import dataclasses
import os
import pathlib

# Folders that are generated, fetched or private to a machine.
_SKIPPED = ("bazel-", "runs", ".")


def root():
    """The workspace that this very file lies in, also when Bazel runs a symlink to it."""
    return pathlib.Path(__file__).resolve().parents[2]


def files(top):
    """Paths of all files below `top`, relative to it, sorted."""
    found = []
    for folder, folders, names in os.walk(top):
        at_top = pathlib.Path(folder) == pathlib.Path(top)
        folders[:] = [f for f in folders if f != "__pycache__" and not (at_top and f.startswith(_SKIPPED))]
        found += [(pathlib.Path(folder) / name).relative_to(top).as_posix() for name in names]
    return sorted(found)


def is_build_file(path):
    """Also third_party/x/x.BUILD and BUILD.x, which become the BUILD file of another place."""
    name = pathlib.PurePath(path).name
    return name == "BUILD" or name.startswith("BUILD.") or name.endswith(".BUILD")


@dataclasses.dataclass
class Rule:
    """One call of a rule or a function at the top of a BUILD file."""

    package: str
    kind: str
    line: int
    attributes: dict  # name to ast.expr, in the order of the file

    @property
    def name(self):
        return literal(self.attributes.get("name"))

    def strings(self, *attributes):
        """Every string that stands in these attributes (all of them, if none is named), inside calls too."""
        chosen = [self.attributes[a] for a in attributes or self.attributes if a in self.attributes]
        return [node.value for value in chosen for node in ast.walk(value)
                if isinstance(node, ast.Constant) and isinstance(node.value, str)]


def literal(node):
    """The value of a literal expression; None for anything else."""
    try:
        return ast.literal_eval(node) if node is not None else None
    except ValueError:
        return None


def rules(package, text):
    """The calls at the top of a BUILD file: rules, load() and package() among them."""
    found = []
    for statement in ast.parse(text).body:
        call = statement.value if isinstance(statement, (ast.Expr, ast.Assign)) else None
        # [cc_test(name = ...) for x in ...]: its rule counts once.
        if isinstance(call, ast.ListComp):
            call = call.elt
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name):
            attributes = {k.arg: k.value for k in call.keywords if k.arg}
            for i, argument in enumerate(call.args):
                attributes[str(i)] = argument
            found.append(Rule(package, call.func.id, call.lineno, attributes))
    return found


def build_rules(top):
    """The rules of every BUILD file below `top`, as (path, rule)."""
    for path in files(top):
        if pathlib.PurePath(path).name in ("BUILD", "BUILD.bazel"):
            package = pathlib.PurePath(path).parent.as_posix()
            for rule in rules("" if package == "." else package, (pathlib.Path(top) / path).read_text()):
                yield path, rule


def absolute(label, package):
    """":x" and "x.cc" of //package as "//package:x"; "//p" as "//p:p"; "@r//..." and "@r" as they are."""
    if label.startswith("@"):
        return label
    if label.startswith("//"):
        return label if ":" in label else f"{label}:{label.rsplit('/', 1)[-1]}"
    return f"//{package}:{label.lstrip(':')}"
