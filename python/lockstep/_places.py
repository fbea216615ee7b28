"""Names lines of the user's program. Private to this package."""

import os
import pathlib
import sys
import sysconfig
from types import FrameType

_PACKAGE = str(pathlib.Path(__file__).parent) + os.sep
_STANDARD = sysconfig.get_paths()["stdlib"] + os.sep


def is_torch(frame: FrameType) -> bool:
    """Returns whether the frame runs a function of PyTorch."""
    return f"{os.sep}torch{os.sep}" in frame.f_code.co_filename and str(frame.f_globals.get("__name__")).startswith(
        "torch"
    )


def is_own(frame: FrameType) -> bool:
    """Returns whether the frame runs a function of this package."""
    return frame.f_code.co_filename.startswith(_PACKAGE)


def is_users(frame: FrameType) -> bool:
    """Returns whether the frame is outside PyTorch, this package and Python's standard library."""
    name = frame.f_code.co_filename
    if name.startswith(_STANDARD) and "site-packages" not in name and "dist-packages" not in name:
        return False
    return not name.startswith(("<frozen", "<string>")) and not is_own(frame) and not is_torch(frame)


def describe(frame: FrameType) -> str:
    """Returns "train.py:41", with the path from the working directory where the file is below it."""
    name = frame.f_code.co_filename
    try:
        inside = os.path.relpath(name)
    except (OSError, ValueError):
        inside = os.pardir
    return f"{name if inside.startswith(os.pardir) else inside}:{frame.f_lineno}"


def caller() -> str:
    """Returns the line of the user's program that called into this package, or "" if there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if is_users(frame):
            return describe(frame)
        frame = frame.f_back
    return ""
