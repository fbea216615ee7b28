"""Calls the C functions of liblockstep_core.so, which python/core declares. Private to this package.

ctypes releases the interpreter's lock while a function runs.
"""

import array
import ctypes
import json
import math
import operator
import pathlib
from typing import Any, Callable, Iterable, Sequence

_library = ctypes.CDLL(str(pathlib.Path(__file__).parent / "liblockstep_core.so"))


class Interrupted(Exception):
    """A handler of a signal raised an exception while a function waited. _sockets.wait raises that one instead."""


# By the name of Abseil's status code. All else is a RuntimeError.
_ERRORS: dict[str, type[Exception]] = {
    "INVALID_ARGUMENT": ValueError,
    "OUT_OF_RANGE": IndexError,
    "NOT_FOUND": LookupError,
    "RESOURCE_EXHAUSTED": MemoryError,
    "DEADLINE_EXCEEDED": TimeoutError,
    "UNAVAILABLE": ConnectionError,
    "CANCELLED": Interrupted,
}


def take_text(address: int) -> str:
    """Returns a text that a function gave to its caller, and frees it."""
    try:
        return ctypes.string_at(address).decode(errors="replace")
    finally:
        _library.lockstep_free(ctypes.c_void_p(address))


def error_of(report: str) -> Exception:
    """Returns the exception for "CODE message"."""
    code, _, message = report.partition(" ")
    return _ERRORS.get(code, RuntimeError)(message)


def _check(address: int | None, _function: Any, _arguments: Any) -> None:
    if address:
        raise error_of(take_text(address))


def function(name: str, *argument_types: Any) -> Callable[..., None]:
    """Returns a C function that reports errors. It raises them."""
    found: Callable[..., None] = plain(name, ctypes.c_void_p, *argument_types)
    found.errcheck = _check  # type: ignore[attr-defined]
    return found


def plain(name: str, result: Any, *argument_types: Any) -> Callable[..., Any]:
    """Returns a C function that cannot fail."""
    found: Callable[..., Any] = getattr(_library, name)
    found.argtypes = argument_types  # type: ignore[attr-defined]
    found.restype = result  # type: ignore[attr-defined]
    return found


plain("lockstep_free", None, ctypes.c_void_p)
version: str = plain("lockstep_version", ctypes.c_char_p)().decode()


def encode(value: Any) -> bytes:
    """Returns JSON of values that `whole`, `number`, `text` and `integers` have checked."""
    return json.dumps(value, ensure_ascii=False).encode()


def text(value: Any, name: str) -> str:
    """Returns a text."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a text, not {value!r}")
    return value


def whole(value: Any, name: str) -> int:
    """Returns a whole number of 64 bits, which may be one of NumPy or a tensor of one element."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be a whole number, not {value!r}") from None
    if not -(2**63) <= number < 2**63:
        raise ValueError(f"{name} must be a whole number of 64 bits, not {number}")
    return number


def number(value: Any, name: str) -> float:
    """Returns a finite number."""
    try:
        result = float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{name} must be a number, not {value!r}") from None
    if not math.isfinite(result):
        raise ValueError(f"{name} must be finite, not {result}")
    return result


def line(text: str) -> bytes:
    """Returns a text for a C function that reads up to the first zero byte."""
    return text.replace("\0", "\\0").encode(errors="replace")


def integers(values: Iterable[Any], name: str, code: str = "q") -> "array.array[int]":
    """Returns whole numbers as an array: of a list, an array of NumPy, a tensor of one dimension."""
    found: array.array[int] = _array(code, values, name, "whole numbers")
    return found


def floats(values: Iterable[Any], name: str) -> "array.array[float]":
    """Returns numbers as an array of doubles."""
    found: array.array[float] = _array("d", values, name, "numbers")
    return found


def _array(code: str, values: Any, name: str, kind: str) -> Any:
    if isinstance(values, (str, bytes, bytearray)):
        raise TypeError(f"{name} must be a sequence of {kind}, not {type(values).__name__}")
    given = values.tolist() if hasattr(values, "tolist") else values
    try:
        return array.array(code, given)
    except OverflowError as error:
        raise ValueError(f"{name}: {error}") from None
    except TypeError as error:
        raise TypeError(f"{name} must be a sequence of {kind}: {error}") from None


def pointer(values: "array.array[Any]", kind: Any) -> Any:
    """Returns a pointer to the numbers of an array. The array must outlive it."""
    address, _ = values.buffer_info()
    return ctypes.cast(address, ctypes.POINTER(kind))


def of_length(values: Sequence[Any], length: int, name: str, what: str) -> None:
    """Raises ValueError unless there is one value for each of `length` things."""
    if len(values) != length:
        raise ValueError(f"{name} has {len(values)} values, but there are {length} {what}")
