"""make_wheel.py OUT ARCHIVE FILE...: packs the Python package and the program's archive into a wheel.

OUT is a folder, or a file whose name a wheel may have; the name of the wheel is printed. ARCHIVE is what ./package
writes. FILEs are those of //python/lockstep; Abseil's shared libraries, which they need, are taken from this machine.

The tag is `py3-none-manylinux_2_Y_x86_64`: ctypes loads the libraries, so one wheel serves every Python from 3.10 on.
Y is the oldest glibc that the files allow, read from the versions of their symbols (PEP 600). For symbols of libstdc++
it is the release of glibc from which on distributions have them.

The same files give the same wheel.
"""

import base64
import hashlib
import io
import pathlib
import re
import subprocess
import sys
import tarfile
import zipfile

# libstdc++'s newest symbols, and the manylinux policy that has them.
LIBSTDCXX = {29: 34, 30: 35, 31: 38, 32: 38, 33: 40}
# What every machine has (PEP 600), and what comes with torch.
OF_THE_SYSTEM = re.compile(r"(ld-linux-x86-64|libc|libm|libdl|libpthread|librt|libgcc_s|libstdc\+\+|libgomp|libz)\.so")
OF_TORCH = re.compile(
    r"(libtorch_cpu|libtorch_cuda|libtorch|libc10|libc10_cuda|libcudart|libnccl|libarrow|libparquet)\.so"
)


def output_of(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def is_library(data):
    return data.startswith(b"\x7fELF")


def symbol_versions(path):
    """Returns the largest minor version of GLIBC_2.x and GLIBCXX_3.4.x that a file asks for."""
    text = output_of("objdump", "-T", str(path))
    return {
        name: max((int(minor) for minor in re.findall(pattern, text)), default=0)
        for name, pattern in (("glibc", r"\(GLIBC_2\.(\d+)"), ("libstdcxx", r"\(GLIBCXX_3\.4\.(\d+)"))
    }


def needed(path):
    return re.findall(r"\(NEEDED\).*\[(.*)\]", output_of("readelf", "-d", str(path)))


def libraries_of(paths):
    """Returns the shared libraries that files need beyond the system's and torch's: name -> path."""
    found = {}
    pending = list(paths)
    while pending:
        path = pending.pop()
        wanted = [name for name in needed(path) if not OF_THE_SYSTEM.match(name) and not OF_TORCH.match(name)]
        if not wanted:
            continue
        places = dict(re.findall(r"(\S+) => (\S+)", output_of("ldd", str(path))))
        for name in wanted:
            if name in found:
                continue
            if not places.get(name, "").startswith("/"):
                sys.exit(f"make_wheel: {path} needs {name}, which is not on this machine")
            found[name] = pathlib.Path(places[name]).resolve()
            pending.append(found[name])
    return found


def contents(archive, files):
    """Yields (name in the wheel, bytes, mode)."""
    for file in files:
        path = pathlib.Path(file)
        yield f"lockstep/{path.name}", path.read_bytes(), 0o755 if path.suffix == ".so" else 0o644
    for name, path in sorted(libraries_of(file for file in files if file.endswith(".so")).items()):
        yield f"lockstep/{name}", path.read_bytes(), 0o755
    with tarfile.open(archive) as tar:
        for member in tar:
            if member.isfile():
                name = member.name.split("/", 1)[1]
                yield f"lockstep/_program/{name}", tar.extractfile(member).read(), member.mode


def tag_of(members, scratch):
    glibc = 17
    for name, data, _ in members:
        if not is_library(data):
            continue
        path = scratch / "library"
        path.write_bytes(data)
        versions = symbol_versions(path)
        if versions["libstdcxx"] > max(LIBSTDCXX):
            sys.exit(f"make_wheel: {name} needs GLIBCXX_3.4.{versions['libstdcxx']}; add it to LIBSTDCXX")
        glibc = max(glibc, versions["glibc"], LIBSTDCXX.get(versions["libstdcxx"], 0))
    return f"py3-none-manylinux_2_{glibc}_x86_64"


METADATA = """Metadata-Version: 2.1
Name: lockstep
Version: {version}
Summary: Training on many ranks that cannot disagree: the program lockstep, and its libraries for trainers in Python
License: Apache-2.0
Requires-Python: >=3.10
Provides-Extra: torch
Requires-Dist: torch=={torch}.*; extra == "torch"
Description-Content-Type: text/markdown

"""


def main(out, archive, files):
    scratch = pathlib.Path(out if pathlib.Path(out).is_dir() else pathlib.Path(out).parent) / ".make_wheel"
    scratch.mkdir(exist_ok=True)
    members = list(contents(archive, files))
    texts = {name: data.decode() for name, data, _ in members if name.endswith(("bin/lockstep", "README.md"))}
    launcher = texts["lockstep/_program/bin/lockstep"]
    torch = re.search(r"^built_for=(\d+\.\d+)", launcher, re.MULTILINE)[1]
    # Wheels for two versions of torch differ in their names. pip takes the newer where both fit.
    version = f"{re.search(r'^version=([0-9.]+)$', launcher, re.MULTILINE)[1]}+torch{torch}"
    tag = tag_of(members, scratch)
    info = f"lockstep-{version}.dist-info"
    for name, text in (
        ("METADATA", METADATA.format(version=version, torch=torch) + texts["lockstep/_program/README.md"]),
        ("WHEEL", f"Wheel-Version: 1.0\nGenerator: lockstep\nRoot-Is-Purelib: false\nTag: {tag}\n"),
        (
            "entry_points.txt",
            "[console_scripts]\nlockstep = lockstep._program:main\nlockstep-to-wandb = lockstep._program:to_wandb\n",
        ),
    ):
        members.append((f"{info}/{name}", text.encode(), 0o644))
    record = io.StringIO()
    for name, data, _ in members:
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        record.write(f"{name},sha256={digest},{len(data)}\n")
    record.write(f"{info}/RECORD,,\n")
    members.append((f"{info}/RECORD", record.getvalue().encode(), 0o644))

    for file in scratch.iterdir():
        file.unlink()
    scratch.rmdir()
    path = pathlib.Path(out)
    if path.is_dir():
        path = path / f"lockstep-{version}-{tag}.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, data, mode in members:
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.external_attr = (0o100000 | mode) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            wheel.writestr(entry, data)
    print(path)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
