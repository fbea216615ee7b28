// liblockstep_parquet.so, which alone links Apache Arrow's library. It is loaded when the first
// Parquet file is opened, so that the program starts on a machine without Arrow.

#ifndef LOCKSTEP_DRIVER_LUA_BIND_DATA_PARQUET_H_
#define LOCKSTEP_DRIVER_LUA_BIND_DATA_PARQUET_H_

#include "absl/status/statusor.h"
#include "driver/data/parquet/unpack.h"

namespace lockstep::lua {

// Returns the library's function. Returns Unimplemented, with what to do, if the program was built
// without Arrow or this machine has none. Thread-safe.
absl::StatusOr<data::UnpackParquetFunction> LoadUnpackParquet();

}  // namespace lockstep::lua

#endif  // LOCKSTEP_DRIVER_LUA_BIND_DATA_PARQUET_H_
