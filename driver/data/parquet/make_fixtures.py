#!/usr/bin/env python3
"""Writes testdata/, Parquet files of 60 KB in all: make_fixtures.py

Needs pyarrow 26.0.1. types.parquet has a row of values, a row of nulls and a row of empty and extreme values.
groups_<compression>.parquet has 25 rows in groups of 4. The tests state the values again.
"""

import datetime
import decimal
import pathlib

import pyarrow as pa
import pyarrow.parquet as pq

assert pa.__version__ == "26.0.1", pa.__version__
HERE = pathlib.Path(__file__).resolve().parent
TO = HERE / "testdata"
UTC = datetime.timezone.utc
DAY = datetime.datetime(2026, 11, 22, 16, 30, 0, 250000)

# Column: type, first row, third row.
MESSAGE = pa.struct([("role", pa.string()), ("content", pa.string()), ("weight", pa.float32())])
TYPES = {
    "nothing": (pa.null(), None, None),
    "flag": (pa.bool_(), True, False),
    "i8": (pa.int8(), -8, -128),
    "i16": (pa.int16(), -16, 32767),
    "i32": (pa.int32(), -32, 2147483647),
    "i64": (pa.int64(), -64, 9007199254740992),
    "u8": (pa.uint8(), 8, 255),
    "u16": (pa.uint16(), 16, 65535),
    "u32": (pa.uint32(), 32, 4294967295),
    "u64": (pa.uint64(), 64, 2**60),
    "f16": (pa.float16(), 1.5, -65504.0),
    "f32": (pa.float32(), 0.25, float("inf")),
    "f64": (pa.float64(), 0.1, 3.0),
    "text": (pa.string(), "h\u00e9llo", ""),
    "large_text": (pa.large_string(), "large", ""),
    "view": (pa.string_view(), "a text of more than twelve bytes", ""),
    "word": (pa.dictionary(pa.int32(), pa.string()), "one of few", ""),
    "bytes": (pa.binary(), b"\x00\xff\x01", b""),
    "fixed": (pa.binary(3), b"abc", b"\x00\x00\x00"),
    "day": (pa.date32(), DAY.date(), datetime.date(1969, 12, 31)),
    "clock": (pa.time64("us"), DAY.time(), datetime.time(0)),
    "utc": (pa.timestamp("ms", tz="UTC"), DAY.replace(tzinfo=UTC), datetime.datetime(1970, 1, 1, tzinfo=UTC)),
    "local": (pa.timestamp("us"), DAY, datetime.datetime(1970, 1, 1)),
    "price": (pa.decimal128(7, 2), decimal.Decimal("12.50"), decimal.Decimal("-0.01")),
    "ints": (pa.list_(pa.int32()), [1, None, 3], []),
    "pair": (pa.list_(pa.float64(), 2), [1.0, 2.5], [0.0, 0.0]),
    "nested": (pa.list_(pa.list_(pa.string())), [["a"], None, [None, "b"]], [[]]),
    "counts": (pa.map_(pa.string(), pa.int64()), [("b", 1), ("a", 2)], []),
    "messages": (
        pa.list_(MESSAGE),
        [{"role": "user", "content": "hi", "weight": 1}, {"role": "assistant", "content": None, "weight": 0.5}],
        [],
    ),
    "image": (pa.struct([("bytes", pa.binary()), ("path", pa.string())]), None, None),
}


def write(name, table, **options):
    pq.write_table(table, TO / f"{name}.parquet", **options)


def types():
    picture = {"bytes": (HERE / "../../images/testdata/png_palette4.png").read_bytes(), "path": "png_palette4.png"}
    columns = {name: pa.array([first, None, third], kind) for name, (kind, first, third) in TYPES.items()}
    columns["image"] = pa.array([picture, None, {"bytes": b"", "path": None}], TYPES["image"][0])
    write("types", pa.table(columns), compression="zstd")


def groups():
    table = pa.table({
        "id": pa.array(range(1, 26), pa.int64()),
        "text": [f"row {i}" for i in range(1, 26)],
        "kind": ["even" if i % 2 == 0 else "odd" for i in range(1, 26)],
        "parts": [list(range(i % 4)) for i in range(1, 26)],
    })
    for compression in ["none", "snappy", "gzip", "zstd", "lz4", "brotli"]:
        write(f"groups_{compression}", table, compression=compression, row_group_size=4, use_dictionary=["kind"],
              write_page_checksum=compression == "none")
    write("zero_rows", table.slice(0, 0))


def refused():
    write("inexact", pa.table({"id": [1, 2, 2**53 + 1], "text": ["a", "b", "c"]}))
    keys = pa.map_(pa.int32(), pa.string())
    write("keys", pa.table({"text": ["a"], "names": pa.array([[[(1, "x")]]], pa.list_(keys))}))


TO.mkdir(exist_ok=True)
types()
groups()
refused()
total = sum(file.stat().st_size for file in TO.iterdir())
assert total < 60_000, total
