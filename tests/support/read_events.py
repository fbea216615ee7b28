"""Prints the records of a TensorBoard event file as JSON lines, read by the tensorboard wheel's own reader.

    python3 read_events.py FILE

The wheel's record reader (frames, checksums) and its Event message do the work. Files it opens through NumPy-laden
code, of which the reader needs one function: that one stands in here, so that the test needs no NumPy.
"""

import json
import os
import pathlib
import pwd
import sys
import types


def wheels():
    """The folder that third_party/setup fetched the wheels into."""
    home = pathlib.Path(os.environ.get("HOME") or pwd.getpwuid(os.getuid()).pw_dir)
    base = os.environ.get("XDG_CACHE_HOME") or home / ".cache"
    folder = pathlib.Path(os.environ.get("LOCKSTEP_CACHE") or pathlib.Path(base) / "lockstep") / "data/tensorboard"
    if not folder.is_dir():
        sys.exit(f"{folder} is not there; ./test fetches it, or set LOCKSTEP_CACHE")
    return folder


def reader_of(folder):
    """The class PyRecordReader_New and the Event message of the wheel in `folder`."""
    sys.path.insert(0, str(folder))
    stub = "tensorboard.compat.tensorflow_stub"
    for name, path in ((stub, "tensorflow_stub"), (stub + ".io", "tensorflow_stub/io")):
        package = types.ModuleType(name)
        package.__path__ = [str(folder / "tensorboard/compat" / path)]
        sys.modules[name] = package
    gfile = types.SimpleNamespace(exists=os.path.exists, GFile=open)
    sys.modules[stub + ".io"].gfile = gfile
    from tensorboard.compat.proto import event_pb2
    from tensorboard.compat.tensorflow_stub import errors, pywrap_tensorflow
    return pywrap_tensorflow.PyRecordReader_New, errors.OutOfRangeError, event_pb2.Event


def main(path):
    reader_class, end_of_file, message = reader_of(wheels())
    reader = reader_class(path)
    while True:
        try:
            reader.GetNext()
        except end_of_file:
            return
        event = message.FromString(reader.record())
        print(json.dumps({
            "step": event.step,
            "wall_time": event.wall_time,
            "kind": event.WhichOneof("what"),
            "version": event.file_version,
            "status": event.session_log.status,
            "scalars": {value.tag: repr(value.simple_value) for value in event.summary.value
                        if value.WhichOneof("value") == "simple_value"},
            "texts": {value.tag: value.tensor.string_val[0].decode() for value in event.summary.value
                      if value.metadata.plugin_data.plugin_name == "text"},
        }))


if __name__ == "__main__":
    main(sys.argv[1])
