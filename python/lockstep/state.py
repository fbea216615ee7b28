"""Reads and writes the saved state of a run: weights, optimizer, generators (docs/state.md says what is in the folder).

    state = lockstep.state.load("runs/first")            # the newest whole one; or a folder step-00000437
    model.load_state_dict(state.model)                   # tensors on the CPU, by the names of the model
    state.model["lm_head.weight"].mul_(0.5)
    lockstep.state.save(state, "runs/second/state/step-00000437")     # run:resume of another run goes on from it

Files are compared with the lengths and checksums of complete.json before anything is used. PyTorch's distributed
checkpoints and Hugging Face's loaders read the same files: this is the short way, and needs torch alone.
"""

import ctypes
import dataclasses
import json
import math
import os
import pathlib
import re
import shutil
import zlib
from typing import Any

import torch

_MARKER = "complete.json"
_FORMAT = 1
_STEP = re.compile(r"step-(\d+)")
_FILE = re.compile(r"(model|state)-\d+-of-\d+\.safetensors|model\.safetensors\.index\.json")
# The names of safetensors (https://github.com/huggingface/safetensors, "Format").
_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "C64": torch.complex64,
}


@dataclasses.dataclass
class State:
    """A saved state. Change tensors in place, or replace them by others of the same shape and dtype.

    step: the step after which it was saved.
    world_size: the number of ranks that saved it.
    model: the model's tensors by name. Tied weights are there once, under the first of their names.
    tensors: all others, as "optimizer.state.fc1.weight.exp_avg" and "lockstep.values.rng.torch".
    """

    step: int
    world_size: int
    model: dict[str, torch.Tensor]
    tensors: dict[str, torch.Tensor]
    _marker: dict[str, Any] = dataclasses.field(repr=False)
    _files: dict[str, bytes | dict[str, Any]] = dataclasses.field(repr=False)

    def __repr__(self) -> str:
        return (
            f"State(step={self.step}, world_size={self.world_size}, model of {len(self.model)} tensors, "
            f"{len(self.tensors)} others)"
        )


def _checksum(data: bytes | bytearray) -> str:
    return f"{zlib.crc32(data):08x}"


def _checksum_of_marker(marker: dict[str, Any]) -> str:
    content = {key: value for key, value in marker.items() if key != "crc32"}
    return _checksum(json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode())


def _read_marker(folder: pathlib.Path) -> dict[str, Any]:
    path = folder / _MARKER
    try:
        marker = json.loads(path.read_bytes())
    except OSError as error:
        raise ValueError(f"{folder} is no whole state: there is no {_MARKER} ({error.strerror})") from None
    except ValueError as error:
        raise ValueError(f"{path} is no JSON: {error}") from None
    if not isinstance(marker, dict) or marker.get("crc32") != _checksum_of_marker(marker):
        raise ValueError(f"{path} does not match its own checksum: it was changed, or is torn")
    whole = [marker.get(key) for key in ("format", "step", "world_size")]
    if not all(isinstance(each, int) for each in whole) or not isinstance(marker.get("files"), dict):
        raise ValueError(f"{path} has no format, step, world_size and files")
    for name, expected in marker["files"].items():
        if not _FILE.fullmatch(name) or not isinstance(expected, dict) or not {"bytes", "crc32"} <= set(expected):
            raise ValueError(f"{path} names {name!r}, which is no file of a state")
    if marker["format"] > _FORMAT:
        raise ValueError(
            f"{path} is of format {marker['format']}, and this package reads up to {_FORMAT}: use a newer one"
        )
    return marker


def latest(run: str | os.PathLike[str]) -> pathlib.Path:
    """Returns the newest whole state of a run's folder. Raises FileNotFoundError if there is none."""
    root = pathlib.Path(run)
    root = root if root.name == "state" else root / "state"
    folders = [path for path in root.glob("step-*") if _STEP.fullmatch(path.name) and (path / _MARKER).is_file()]
    if not folders:
        raise FileNotFoundError(f"{root} has no folder step-N with a {_MARKER}: the run has saved no state")
    return max(folders, key=lambda path: int(path.name[5:]))


def _read(path: pathlib.Path, size: int) -> bytearray:
    data = bytearray(size)
    with open(path, "rb") as file:
        return data[: file.readinto(data)]


def _parse(path: pathlib.Path, data: bytearray) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Returns the header and the tensors of a safetensors file."""
    length = int.from_bytes(data[:8], "little")
    begin = 8 + length
    if len(data) < 8 or begin > len(data):
        raise ValueError(f"{path} is no safetensors file")
    header = json.loads(data[8:begin])
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        dtype, shape, (first, last) = entry["dtype"], entry["shape"], entry["data_offsets"]
        if not all(isinstance(each, int) and each >= 0 for each in (*shape, first, last)):
            raise ValueError(f"{path}: {name} has the shape {shape} and the place {first} to {last}")
        if dtype not in _DTYPES:
            raise ValueError(f"{path}: {name} has the dtype {dtype}, which is not known here")
        size = math.prod(shape) * _DTYPES[dtype].itemsize
        if not 0 <= first <= last <= len(data) - begin or last - first != size:
            raise ValueError(
                f"{path}: {name} of shape {shape} needs {size} bytes, but has the place {first} to {last} of "
                f"{len(data) - begin}"
            )
        flat = torch.empty(0, dtype=torch.uint8)
        if size:
            flat = torch.frombuffer(data, dtype=torch.uint8, count=size, offset=begin + first)
        # A copy is aligned for every dtype.
        tensors[name] = flat.clone().view(_DTYPES[dtype]).view(shape)
    return header, tensors


def load(path: str | os.PathLike[str]) -> State:
    """Returns a saved state, of a folder step-N or the newest of a run's folder. All tensors are on the CPU.

    Raises ValueError, with the file, if a file is torn or belongs to another state; FileNotFoundError without a state.
    """
    folder = pathlib.Path(path)
    if not _STEP.fullmatch(folder.name) and not (folder / _MARKER).exists():
        folder = latest(folder)
    marker = _read_marker(folder)
    state = State(marker["step"], marker["world_size"], {}, {}, marker, {})
    for name, expected in marker["files"].items():
        file = folder / name
        try:
            size = file.stat().st_size
            data = _read(file, size) if size == expected["bytes"] else bytearray()
        except OSError as error:
            raise ValueError(f"{file} cannot be read: {error.strerror}") from None
        if size != expected["bytes"]:
            raise ValueError(f"{file} has {size} bytes, but {_MARKER} says {expected['bytes']}: it is torn")
        if _checksum(data) != expected["crc32"]:
            raise ValueError(f"{file} has another checksum than {_MARKER} says: it was changed, or is torn")
        if not name.endswith(".safetensors"):
            state._files[name] = bytes(data)
            continue
        try:
            header, tensors = _parse(file, data)
        except (AttributeError, KeyError, OverflowError, RuntimeError, TypeError, ValueError) as error:
            if str(error).startswith(str(file)):
                raise
            raise ValueError(f"{file} has a header that is none of safetensors: {error!r}") from error
        state._files[name] = header
        (state.model if name.startswith("model-") else state.tensors).update(tensors)
    return state


def _bytes_of(tensor: torch.Tensor) -> bytes:
    flat = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    return ctypes.string_at(flat.data_ptr(), flat.nbytes) if flat.numel() else b""


def save(state: State, path: str | os.PathLike[str]) -> None:
    """Writes a state to a new folder, from which run:resume goes on; its name is step-N with the state's step.

    Raises ValueError if the folder has another name, or if a tensor is missing, new, or of another shape or dtype than
    the one that was loaded: a run could not go on from it. Raises FileExistsError if the folder is there.
    """
    folder = pathlib.Path(path)
    name = f"step-{state.step:08d}"
    if folder.name != name:
        raise ValueError(f"a state of step {state.step} belongs in a folder {name}, not in {folder.name}")
    if folder.exists():
        raise FileExistsError(f"{folder} is there already; remove it, or choose another")
    left = {"model": set(state.model), "state": set(state.tensors)}
    contents: dict[str, bytes] = {}
    for file, content in state._files.items():
        if isinstance(content, bytes):
            contents[file] = content
            continue
        kind = "model" if file.startswith("model-") else "state"
        given = state.model if kind == "model" else state.tensors
        body = []
        entries = {name: entry for name, entry in content.items() if name != "__metadata__"}
        for key, entry in sorted(entries.items(), key=lambda item: item[1]["data_offsets"]):
            if key not in given:
                raise ValueError(f"the tensor {key} is missing")
            tensor = given[key]
            if not isinstance(tensor, torch.Tensor) or tensor.is_meta:
                raise ValueError(f"{key} must be a tensor with values, not {type(tensor).__name__}")
            left[kind].discard(key)
            if list(tensor.shape) != entry["shape"] or tensor.dtype != _DTYPES[entry["dtype"]]:
                raise ValueError(
                    f"{key} is {tensor.dtype} of shape {list(tensor.shape)}, but the state that was loaded has "
                    f"{_DTYPES[entry['dtype']]} of shape {entry['shape']}"
                )
            body.append(_bytes_of(tensor))
        header = json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode()
        header += b" " * (-len(header) % 8)
        contents[file] = len(header).to_bytes(8, "little") + header + b"".join(body)
    for names in left.values():
        if names:
            raise ValueError(f"the state that was loaded has no tensor {', '.join(sorted(names))}")
    marker = dict(state._marker)
    marker["files"] = {file: {"bytes": len(data), "crc32": _checksum(data)} for file, data in contents.items()}
    marker["crc32"] = _checksum_of_marker(marker)
    # Complete, or absent: as the program's own saves.
    part = folder.with_name(name + ".lockstep-part")
    if part.exists():  # of a save that was killed
        shutil.rmtree(part)
    part.mkdir(parents=True)
    contents[_MARKER] = (json.dumps(marker, indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode()
    for file, data in contents.items():
        with open(part / file, "wb") as out:
            out.write(data)
            out.flush()
            os.fsync(out.fileno())
    part.rename(folder)
