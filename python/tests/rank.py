"""rank.py PROGRAM ARGUMENTS: runs a program as python3 does, and leaves without the interpreter's teardown.

A thread of Gloo drops the tensors of a collective that has ended, and for this takes the lock of the interpreter. If the
interpreter begins its teardown meanwhile, Python ends the thread within a destructor, and the process aborts with "terminate
called without an active exception" (https://github.com/pytorch/pytorch/issues/190489).
"""

import atexit
import os
import runpy
import sys
import traceback

del sys.argv[0]
code = 0
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
except SystemExit as end:
    if isinstance(end.code, str):
        print(end.code, file=sys.stderr)
    code = end.code if isinstance(end.code, int) else int(end.code is not None)
except BaseException:
    traceback.print_exc()
    code = 1
atexit._run_exitfuncs()
sys.stdout.flush()
sys.stderr.flush()
os._exit(code)
