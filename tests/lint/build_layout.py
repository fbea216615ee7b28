"""Checks the layout of BUILD files as buildifier would: build_layout.py [WORKSPACE] prints every breach.

Strings in double quotes; load() first; in a rule its name first, then size, testonly, srcs, hdrs, the others by
name, and deps last; lists of labels sorted, one label a line; indents of four spaces; one empty line between
rules; no tab, no space at the end of a line. Where buildifier is at hand, it does all that and more.
"""

import ast
import io
import pathlib
import re
import sys
import tokenize

import workspace

# Attributes that stand apart from the alphabet (buildifier's table NamePriority).
_PRIORITY = {
    "name": -99, "size": -95, "timeout": -94, "testonly": -93, "src": -92, "srcs": -90, "out": -89, "outs": -88,
    "hdrs": -87, "include": -85, "runtime_deps": 3, "deps": 4, "implementation": 5, "alwayslink": 7,
}
_SORTED = ("data", "deps", "hdrs", "includes", "outs", "runtime_deps", "srcs", "tags", "tools", "visibility")
_NO_ORDER = ("load", "package", "glob", "exports_files", "licenses", "workspace")


def _attribute_key(name):
    return _PRIORITY.get(name, 0), name


def _label_key(label):
    phase = 1 if label.startswith(":") else 2 if label.startswith("//") else 3 if label.startswith("@") else 0
    return phase, label.replace(":", ".").split(".")


def _check_text(path, text):
    if text and (not text.endswith("\n") or text.endswith("\n\n")):
        yield f"{path}: ends with one line break, no more"
    for number, line in enumerate(text.splitlines(), 1):
        if "\t" in line:
            yield f"{path}:{number}: has a tab; indent by four spaces"
        if line != line.rstrip():
            yield f"{path}:{number}: has spaces at its end"
        indent = len(line) - len(line.lstrip(" "))
        if indent % 4 and line.strip():
            yield f"{path}:{number}: is indented by {indent} spaces, not by a multiple of four"
    for number in (text.count("\n", 0, m.start()) + 3 for m in re.finditer("\n\n\n", text)):
        yield f"{path}:{number}: has more than one empty line before it"


def _check_quotes(path, text):
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.STRING and "'" in (token.string[0], token.string[-1]):
            yield f"{path}:{token.start[0]}: {token.string} stands in single quotes; use double ones"


def _check_order(path, text):
    """load() before all else, and an empty line between statements that are no loads."""
    others, previous = 0, None
    lines = text.splitlines()
    for statement in ast.parse(text).body:
        value = getattr(statement, "value", None)
        is_load = isinstance(value, ast.Call) and getattr(value.func, "id", "") == "load"
        is_docstring = isinstance(value, ast.Constant)
        if is_load and others:
            yield f"{path}:{statement.lineno}: load() comes before all else"
        others += not is_load and not is_docstring
        between = lines[previous.end_lineno:statement.lineno - 1] if previous else [""]
        if "" not in between and not (is_load and getattr(previous.value.func, "id", "") == "load"):
            yield f"{path}:{statement.lineno}: has no empty line before it"
        previous = statement


def _check_rule(path, rule):
    names = [n for n in rule.attributes if not n.isdigit()]
    if rule.kind in _NO_ORDER:
        return
    if sorted(names, key=_attribute_key) != names:
        order = ", ".join(sorted(names, key=_attribute_key))
        yield f"{path}:{rule.line}: {rule.name or rule.kind}: the order of its attributes is {order}"
    for name in names:
        value = rule.attributes[name]
        labels = workspace.literal(value) if isinstance(value, ast.List) else None
        if name not in _SORTED or not labels or not all(isinstance(x, str) for x in labels):
            continue
        where = f"{path}:{value.lineno}: {rule.name or rule.kind}: {name}"
        if sorted(labels, key=_label_key) != labels:
            yield f"{where} is not sorted; its order is {', '.join(sorted(labels, key=_label_key))}"
        if len(set(labels)) < len(labels):
            yield f"{where} lists something twice"
        if len(labels) > 1 and len({x.lineno for x in value.elts} | {value.lineno, value.end_lineno}) < len(labels) + 2:
            yield f"{where} has several elements; each stands on a line of its own"


def check_file(path, text):
    problems = [*_check_text(path, text), *_check_quotes(path, text), *_check_order(path, text)]
    for rule in workspace.rules("", text):
        problems += _check_rule(path, rule)
    return problems


def check(top):
    problems = []
    for path in filter(workspace.is_build_file, workspace.files(top)):
        problems += check_file(path, (pathlib.Path(top) / path).read_text())
    return problems


if __name__ == "__main__":
    breaches = check(sys.argv[1] if len(sys.argv) > 1 else workspace.root())
    print("\n".join(breaches))
    sys.exit(1 if breaches else 0)
