#!/usr/bin/env python3
"""Writes docs/cpp/, a page for each C++ library, from the library's public headers:

    python3 docs/cpp/generate.py            # writes the pages
    python3 docs/cpp/generate.py FOLDER     # writes them into another folder

Public are the headers of //LIBRARY, //LIBRARY:torch and //LIBRARY:cuda. A target without sources of its own passes on those
of its deps. //tests/lint:cpp_test fails when the pages are not what this program writes.
"""

import pathlib
import re
import sys

TOP = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP / "tests/lint"))
import workspace  # pylint: disable=wrong-import-position

LIBRARIES = ("batching", "sharding", "checkpoint", "tiled_mlp", "mimo", "kernels")
TARGETS = {"": "C++20 and Abseil", "torch": "libtorch", "cuda": "CUDA"}


def public_headers(top, library):
    """Returns [(target, path), ...] in the order of the BUILD files; each header once, under its first target."""
    rules = {f"//{rule.package}:{rule.name}": rule for _, rule in workspace.build_rules(top) if rule.name}
    found = {}

    def visit(label, target):
        rule = rules.get(label)
        if rule is None:
            return
        for header in rule.strings("hdrs"):
            path = f"{rule.package}/{header}"
            if (top / path).is_file():
                found.setdefault(path, target)
        if not rule.strings("srcs", "hdrs"):
            for dep in rule.strings("deps"):
                dep = workspace.absolute(dep, rule.package)
                if dep.startswith(f"//{library}"):
                    visit(dep, target)

    for name in TARGETS:
        visit(f"//{library}:{name or library}", f"//{library}" + (f":{name}" if name else ""))
    return [(target, path) for path, target in found.items()]


def escape(text):
    """Escapes what Markdown would read as markup, except in `code`."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else re.sub(r"([*<>\[\]]|(?<!\w)_|_(?!\w))", r"\\\1", part) for part in parts)


def prose(comment):
    """Returns a header's comment as Markdown: what is indented is code."""
    out, in_code = [], False
    for line in comment:
        text = line[2:]
        is_code = text.startswith("   ") or in_code and not text.strip()
        if is_code != in_code:
            while out and not out[-1]:
                out.pop()
            out += ["", "```cpp"] if is_code else ["```", ""]
            in_code = is_code
        out.append(text[4 if text.startswith("    ") else 3:] if is_code else escape(text.strip()))
    while out and not out[-1]:
        out.pop()
    return out + ["```"] * in_code


def without_private(lines):
    """Leaves out private parts of classes and the braces of namespaces."""
    out, private = [], None  # the indentation of the class whose private part it is
    for line in lines:
        label = re.match(r"( *) (private|public|protected):$", line)
        if label:
            private = label[1] if label[2] == "private" else None
        elif private is not None and re.match(rf"{private}}}", line):
            private = None
        if private is None and not re.match(r"(namespace [\w:]+ \{|\}  // namespace)", line):
            out.append(line)
    return out


def declarations(lines):
    """Returns the code of a header behind its #includes, without empty lines at both ends or two in a row."""
    behind = max((n for n, line in enumerate(lines) if re.match(r"#\s*include", line)), default=1) + 1
    end = max(n for n, line in enumerate(lines) if line.startswith("#endif"))
    out = []
    for line in without_private(lines[behind:end]):
        if line.strip() in ("}", "};") and out and not out[-1]:
            out.pop()
        if line.strip() or out and out[-1].strip():
            out.append(line.rstrip())
    while out and not out[-1]:
        out.pop()
    return out


def section(top, path):
    lines = (top / path).read_text().splitlines()
    guard = next(n for n, line in enumerate(lines) if line.startswith("#"))
    comment = lines[:guard]
    while comment and not comment[-1].strip():
        comment.pop()
    return [f"## {path}", "", *prose(comment), "", "```cpp", *declarations(lines), "```", ""]


def anchor(path):
    return re.sub(r"[^\w-]", "", path.lower())


def first_sentence(top, path):
    comment = []
    for line in (top / path).read_text().splitlines():
        if not line.startswith("//") or not line[2:].strip():
            break
        comment.append(line[2:].strip())
    return escape(re.match(r".*?[.:](?= |$)|.*", " ".join(comment))[0].rstrip(":")).replace("|", r"\|")


def page(top, library):
    headers = public_headers(top, library)
    out = [f"# {library} in C++", "",
           f"Written by `docs/cpp/generate.py` from the headers of the library. [{library}.md](../{library}.md) says when to use it.", "",
           "| header | of | |", "|---|---|---|"]
    out += [f"| [{path}](#{anchor(path)}) | `{target}` | {first_sentence(top, path)} |" for target, path in headers]
    out.append("")
    for _, path in headers:
        out += section(top, path)
    return "\n".join(out).rstrip("\n") + "\n"


def pages(top):
    """Returns the text of each page by its name."""
    index = ["# The C++ libraries", "",
             "Each library works in another Bazel workspace, without the driver and without Lua: "
             "[README](../../README.md#take-one-library) says how. `//LIBRARY` needs C++20 and Abseil, `//LIBRARY:torch` "
             "also libtorch. Of most headers the example is also the first test: look for `HeaderExample` in the tests beside it.", ""]
    index += [f"- [{library}]({library}.md): {len(public_headers(top, library))} headers" for library in LIBRARIES]
    return {"README.md": "\n".join(index) + "\n", **{f"{name}.md": page(top, name) for name in LIBRARIES}}


def main():
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).parent
    folder.mkdir(exist_ok=True)
    for name, text in pages(TOP).items():
        (folder / name).write_text(text)


if __name__ == "__main__":
    main()
