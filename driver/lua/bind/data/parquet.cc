#include "driver/lua/bind/data/parquet.h"

#include <dlfcn.h>

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "c10/util/Exception.h"
#include "driver/files/files.h"

namespace lockstep::lua {
namespace {

constexpr char kWithoutArrow[] =
    "this program was built without Apache Arrow's library, which reads Parquet; ./run and ./test "
    "fetch it unless LIBARROW is set: to nothing, or to a folder that holds pyarrow/ (pip install "
    "pyarrow). Or write the table as JSON lines: df.to_json(\"train.jsonl\", orient=\"records\", "
    "lines=True)";

absl::StatusOr<data::UnpackParquetFunction> Load() {
  std::string path;
  try {
    path = driver::FindRunfile("driver/data/parquet/liblockstep_parquet.so");
  } catch (const c10::Error&) {
    return absl::UnimplementedError(kWithoutArrow);
  }
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return absl::UnimplementedError(
        absl::StrCat("Apache Arrow's library, which reads Parquet, cannot be loaded: ", dlerror(),
                     "; install that pyarrow (number 2600 is pyarrow 26.0) next to torch, or set "
                     "LIBARROW to the folder that holds its pyarrow/"));
  }
  const auto* const symbol =
      static_cast<const data::UnpackParquetFunction*>(dlsym(library, "lockstep_unpack_parquet"));
  if (symbol == nullptr) return absl::InternalError(absl::StrCat(path, ": ", dlerror()));
  return *symbol;
}

}  // namespace

absl::StatusOr<data::UnpackParquetFunction> LoadUnpackParquet() {
  static const absl::StatusOr<data::UnpackParquetFunction> loaded = Load();
  return loaded;
}

}  // namespace lockstep::lua
