// lockstep.core.safetensors: files of tensors.

#include "driver/lua/bind/program/safetensors.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "ATen/ops/empty.h"
#include "ATen/ops/from_blob.h"
#include "ATen/ops/ne.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "driver/files/new_file.h"
#include "driver/files/safetensors.h"
#include "driver/lua/bind/open.h"
#include "driver/lua/tensor/pressure.h"
#include "driver/lua/tensor/tensor.h"
#include "driver/lua/vm/stack.h"
#include "driver/lua/vm/status.h"
#include "driver/lua/vm/vm.h"

namespace lockstep::lua {
namespace {

using driver::SafetensorsFile;
using driver::TensorEntry;

struct NamedFormat {
  const char* name;
  at::ScalarType dtype;
};
constexpr NamedFormat kFormats[] = {{"F64", at::kDouble},
                                    {"F32", at::kFloat},
                                    {"F16", at::kHalf},
                                    {"BF16", at::kBFloat16},
                                    {"C64", at::kComplexFloat},
                                    {"F8_E4M3", at::kFloat8_e4m3fn},
                                    {"F8_E5M2", at::kFloat8_e5m2},
                                    {"I64", at::kLong},
                                    {"I32", at::kInt},
                                    {"I16", at::kShort},
                                    {"I8", at::kChar},
                                    {"U64", at::kUInt64},
                                    {"U32", at::kUInt32},
                                    {"U16", at::kUInt16},
                                    {"U8", at::kByte},
                                    {"BOOL", at::kBool}};

// ReadEntry has refused every other name.
at::ScalarType DtypeOf(const std::string& name) {
  for (const NamedFormat& format : kFormats) {
    if (name == format.name) return format.dtype;
  }
  throw Error(absl::StrCat("safetensors: the dtype ", name, " has no tensor"));
}

const char* FormatOf(at::ScalarType dtype) {
  for (const NamedFormat& format : kFormats) {
    if (dtype == format.dtype) return format.name;
  }
  return nullptr;
}

// --- Reading -------------------------------------------------------------------------------------

// From this size on a file is written past the kernel's cache. A smaller one takes little time to
// write, and is read again from the cache where a run resumes at once.
constexpr size_t kLargeBytes = size_t{64} << 20;

// The tensor in the mapped file; a copy where its bytes are not aligned, or are no bools that code
// may rely on.
at::Tensor TensorIn(const SafetensorsFile& file, const TensorEntry& entry) {
  const at::ScalarType dtype = DtypeOf(entry.dtype);
  const size_t size = entry.end - entry.begin;
  const auto count = static_cast<int64_t>(size);
  at::Tensor bytes = at::from_blob(
      file.bytes(entry), {count}, [mapping = file.mapping()](void*) {}, at::kByte);
  if (dtype == at::kBool) return bytes.ne(0).view(entry.shape);
  const auto address = reinterpret_cast<uintptr_t>(file.bytes(entry));
  if (address % c10::elementSize(dtype) != 0) bytes = bytes.clone();
  return size == 0 ? at::empty(entry.shape, dtype) : bytes.view(dtype).view(entry.shape);
}

// read(path: string, caller: string) -> tensors: table<string, torch.Tensor>,
//     metadata: table<string, string>
// The tensors share the memory of the file, which is mapped; what is written to them stays out of
// it. caller: what errors begin with.
int Read(lua_State* state) {
  const std::string path = ReadString(state, 1, "safetensors: path");
  const std::string caller = ReadString(state, 2, "safetensors: caller");
  const SafetensorsFile file = ValueOrThrow(SafetensorsFile::Open(path), caller + ": ");
  lua_createtable(state, 0, static_cast<int>(file.header().entries.size()));
  for (const TensorEntry& entry : file.header().entries) {
    PushString(state, entry.name);
    at::Tensor tensor = TensorIn(file, entry);
    std::optional<HoldsMapped> mapped;  // not for a copy, which has memory of its own
    if (tensor.const_data_ptr() == file.bytes(entry)) mapped.emplace();
    PushTensor(state, std::move(tensor));
    lua_rawset(state, -3);
  }
  lua_newtable(state);
  for (const auto& [key, value] : file.header().metadata) {
    PushString(state, key);
    PushString(state, value);
    lua_rawset(state, -3);
  }
  return 2;
}

// --- Writing -------------------------------------------------------------------------------------

struct NamedTensor {
  TensorEntry entry;
  at::Tensor tensor;
};

// Wide dtypes first: so every tensor starts at a multiple of its element's size.
std::vector<NamedTensor> ReadNamedTensors(lua_State* state, int index, const std::string& caller) {
  std::vector<NamedTensor> named;
  for (lua_pushnil(state); lua_next(state, index) != 0; lua_pop(state, 1)) {
    const bool has_name = lua_type(state, -2) == LUA_TSTRING;
    const std::string name = has_name ? ReadString(state, -2, "a name")
                                      : absl::StrCat("what is under ", TypeName(state, -2));
    const at::Tensor* tensor = TensorAt(state, -1);
    if (!has_name || tensor == nullptr)
      throw Error(absl::StrCat(caller, ": ", name, " must be a tensor under a name"));
    const char* format = FormatOf(tensor->scalar_type());
    if (format == nullptr) {
      throw Error(absl::StrCat(caller, ": \"", name, "\" is torch.",
                               DtypeName(tensor->scalar_type()), ", which the format lacks"));
    }
    if (tensor->layout() != at::kStrided) {
      throw Error(absl::StrCat(caller, ": \"", name,
                               "\" is sparse, which the format lacks; give its to_dense()"));
    }
    if (tensor->is_meta())
      throw Error(
          absl::StrCat(caller, ": \"", name, "\" is on the device meta: it has no numbers"));
    NamedTensor one;
    one.entry.name = name;
    one.entry.dtype = format;
    one.entry.shape = tensor->sizes().vec();
    one.tensor = tensor->detach();
    named.push_back(std::move(one));
  }
  std::sort(named.begin(), named.end(), [](const NamedTensor& a, const NamedTensor& b) {
    return std::forward_as_tuple(-a.tensor.element_size(), a.entry.name) <
           std::forward_as_tuple(-b.tensor.element_size(), b.entry.name);
  });
  return named;
}

// write(path: string, tensors: table<string, torch.Tensor>, metadata: table<string, string>,
//     caller: string) -> bytes: integer, crc32: string
// The file takes its name once it is complete and on the disk. Returns its length and checksum.
// caller: what errors begin with.
int Write(lua_State* state) {
  const std::string caller = ReadString(state, 4, "safetensors: caller");
  const driver::Checksum checksum =
      ValueOrThrow(ReadTensorFile(state, 1, caller).Write(), caller + ": ");
  PushInteger(state, static_cast<int64_t>(checksum.bytes));
  PushString(state, absl::StrFormat("%08x", checksum.crc32));
  return 2;
}

}  // namespace

TensorFile ReadTensorFile(lua_State* state, int first, const std::string& caller) {
  TensorFile file;
  file.path = ReadString(state, first, "safetensors: path");
  ReadTable(state, first + 1, (caller + ": the tensors").c_str());
  const std::vector<NamedTensor> tensors = ReadNamedTensors(state, first + 1, caller);
  driver::SafetensorsHeader header;
  for (const NamedTensor& named : tensors) {
    header.entries.push_back(named.entry);
    file.tensors.push_back(named.tensor);
  }
  for (lua_pushnil(state); lua_next(state, first + 2) != 0; lua_pop(state, 1)) {
    if (lua_type(state, -2) != LUA_TSTRING || lua_type(state, -1) != LUA_TSTRING)
      throw Error(absl::StrCat(caller, ": the metadata must be texts under names"));
    const std::string key = ReadString(state, -2, "metadata");
    header.metadata[key] = ReadString(state, -1, "metadata");
  }
  file.head = ValueOrThrow(driver::WriteSafetensorsHeader(header), caller + ": ");
  return file;
}

absl::StatusOr<driver::Checksum> TensorFile::Write() const {
  size_t num_bytes = head.size();
  for (const at::Tensor& tensor : tensors) num_bytes += tensor.nbytes();
  const bool is_large = num_bytes >= kLargeBytes;
  driver::NewFile file(path, is_large ? driver::NewFile::kDirect : driver::NewFile::kCached);
  absl::Status status = file.Write(head.data(), head.size());
  for (size_t i = 0; status.ok() && i < tensors.size(); ++i) {
    const at::Tensor dense = tensors[i].cpu().contiguous().resolve_conj().resolve_neg();
    status = file.Write(dense.const_data_ptr(), dense.nbytes());
  }
  if (status.ok()) status = file.Keep();
  if (!status.ok()) return status;
  return file.checksum();
}

int OpenSafetensors(lua_State* state) {
  lua_newtable(state);
  SetFunctions(state, {{"read", Read}, {"write", Write}});
  return 1;
}

}  // namespace lockstep::lua
