// Reads the rows of a Parquet file, in order, with Apache Arrow's library.
//
//   std::string problem = UnpackParquet("train.parquet", {"text"}, [&](std::string_view row) {
//     return Keep(row);   // "" or what went wrong, which ends the reading
//   });
//
// Rows have the form of row.h: an object with a column under each name. Values:
//
//   null, bool, integers, floats   as in JSON; an integer that a double would round is an error
//   string, binary                 bytes
//   list; struct, map              array; object. Keys of a map must be strings
//   date, time, timestamp          text: "2026-11-22", "16:30:00", "2026-11-22 16:30:00.000Z"
//   decimal                        text: "12.50"
//
// Memory: some thousand rows are decoded at a time, however large a row group is.
//
// This is the one function of liblockstep_parquet.so, which alone links Arrow: see
// driver/lua/bind/data/parquet.h. It uses the standard library alone, because Arrow's library
// carries an Abseil of its own.

#ifndef LOCKSTEP_DRIVER_DATA_PARQUET_UNPACK_H_
#define LOCKSTEP_DRIVER_DATA_PARQUET_UNPACK_H_

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::data {

// Reads the given columns, or all if `columns` is empty. Returns "", or an error that begins with
// the file and names the row and the column where it can. Thread-safe.
std::string UnpackParquet(const std::string& path, const std::vector<std::string>& columns,
                          const std::function<std::string(std::string_view row)>& write);

using UnpackParquetFunction = decltype(&UnpackParquet);

}  // namespace lockstep::data

// The symbol that parquet.cc looks up: the address of UnpackParquet.
extern "C" const lockstep::data::UnpackParquetFunction lockstep_unpack_parquet;

#endif  // LOCKSTEP_DRIVER_DATA_PARQUET_UNPACK_H_
