// lockstep.core.keep: snapshots in shared memory, and the process that keeps them.

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ATen/ops/from_blob.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "driver/files/files.h"
#include "driver/keep/client.h"
#include "driver/keep/name.h"
#include "driver/keep/slab.h"
#include "driver/lua/bind/open.h"
#include "driver/lua/bind/program/safetensors.h"
#include "driver/lua/tensor/tensor.h"
#include "driver/lua/vm/object.h"
#include "driver/lua/vm/stack.h"
#include "driver/lua/vm/status.h"
#include "driver/lua/vm/vm.h"

namespace lockstep::lua {

using SharedSlab = std::shared_ptr<driver::Slab>;  // a tensor may outlive the Lua object

template <>
inline constexpr const char* kObjectName<SharedSlab> = "slab";
template <>
inline constexpr const char* kObjectName<TensorFile> = "packed tensors";
template <>
inline constexpr const char* kObjectName<driver::KeeperClient> = "keeper";

namespace {

constexpr int kIdleSeconds = 600;
constexpr char kLauncherVariable[] = "LOCKSTEP_LAUNCHER";  // of driver/launch/launcher.h

// pack(caller: string, tensors: table<string, torch.Tensor>, metadata: table<string, string>) ->
//     Packed
// Tensors in the form of a safetensors file, which is not written yet. caller: what errors begin
// with.
int Pack(lua_State* state) {
  const std::string caller = ReadString(state, 1, "pack: caller");
  return PushObject(state, ReadTensorFile(state, 1, caller));
}

// Packed:bytes() -> integer
int PackedBytes(lua_State* state) {
  const auto& packed = ReadObject<TensorFile>(state, 1, "packed");
  uint64_t bytes = packed.head.size();
  for (const at::Tensor& tensor : packed.tensors) bytes += tensor.nbytes();
  return PushInteger(state, static_cast<int64_t>(bytes));
}

// Copies in pieces that stay in the cache until their checksum is computed.
void Copy(const void* from, size_t size, char*& to, driver::Checksum& checksum) {
  constexpr size_t kPiece = size_t{256} << 10;
  const char* data = static_cast<const char*>(from);
  for (size_t done = 0; done < size;) {
    const size_t piece = std::min(kPiece, size - done);
    std::memcpy(to, data + done, piece);
    checksum.Add(to, piece);
    done += piece;
    to += piece;
  }
}

// Packed:write(slab: Slab) -> crc32: string
// Fills a slab of as many bytes. Returns their checksum.
int PackedWrite(lua_State* state) {
  const auto& packed = ReadObject<TensorFile>(state, 1, "packed");
  const SharedSlab& slab = ReadObject<SharedSlab>(state, 2, "slab");
  uint64_t bytes = packed.head.size();
  for (const at::Tensor& tensor : packed.tensors) bytes += tensor.nbytes();
  if (bytes != slab->bytes())
    throw Error(absl::StrCat("write: ", bytes, " bytes do not fit a slab of ", slab->bytes()));
  char* to = slab->data();
  driver::Checksum checksum;
  Copy(packed.head.data(), packed.head.size(), to, checksum);
  for (const at::Tensor& tensor : packed.tensors) {
    const at::Tensor dense = tensor.cpu().contiguous().resolve_conj().resolve_neg();
    Copy(dense.const_data_ptr(), dense.nbytes(), to, checksum);
  }
  return PushString(state, absl::StrFormat("%08x", checksum.crc32));
}

// slab(bytes: integer) -> Slab
// Shared memory without a name: it is gone when no process has it open.
int NewSlab(lua_State* state) {
  const int64_t bytes = ReadInteger(state, 1, "slab: bytes");
  if (bytes < 1) throw Error(absl::StrCat("slab: bytes must be at least 1, not ", bytes));
  return PushObject(state, std::make_shared<driver::Slab>(
                               ValueOrThrow(driver::Slab::Make(static_cast<uint64_t>(bytes)))));
}

// Slab:bytes() -> integer
int SlabBytes(lua_State* state) {
  return PushInteger(state,
                     static_cast<int64_t>(ReadObject<SharedSlab>(state, 1, "slab")->bytes()));
}

// Slab:path() -> string
// The path under which files.checksum and safetensors.read of this process find it.
int SlabPath(lua_State* state) {
  return PushString(state, ReadObject<SharedSlab>(state, 1, "slab")->path());
}

// Slab:tensor() -> torch.Tensor
// Its bytes, as a tensor of uint8 that shares the memory.
int SlabTensor(lua_State* state) {
  const SharedSlab slab = ReadObject<SharedSlab>(state, 1, "slab");
  return PushTensor(
      state, at::from_blob(
                 slab->data(), {static_cast<int64_t>(slab->bytes())}, [slab](void*) {}, at::kByte));
}

// The launcher that started this rank, which the keeper ends with; 0: there is none.
int Launcher() {
  const char* text = std::getenv(kLauncherVariable);
  int pid = 0;
  return text != nullptr && absl::SimpleAtoi(text, &pid) ? pid : 0;
}

// connect(name: string, starts: boolean) -> Keeper?, reason: string?
// The keeper of that name on this machine; nil and the reason if there is none. Its methods raise
// an error if it is gone. starts: start it if it is not there.
int Connect(lua_State* state) {
  const std::string name = ReadString(state, 1, "connect: name");
  const bool starts = ReadBoolean(state, 2, "connect: starts");
  absl::StatusOr<driver::KeeperClient> client = driver::KeeperClient::Connect(name);
  if (!client.ok() && starts) {
    client = driver::KeeperClient::Start(driver::FindRunfile("driver/keep/lockstep_keep"), name,
                                         Launcher(), kIdleSeconds);
  }
  if (!client.ok()) {
    lua_pushnil(state);
    PushString(state, std::string(client.status().message()));
    return 2;
  }
  return PushObject(state, *std::move(client));
}

// name(folder: string) -> string?
// The name of the keepers of the run in a folder: from its file keep.id, which is made if it is not
// there. nil if it cannot be written.
int Name(lua_State* state) {
  const std::string name = driver::KeeperName(ReadString(state, 1, "name: folder"));
  if (name.empty()) return 0;
  return PushString(state, name);
}

driver::KeeperClient& ReadKeeper(lua_State* state) {
  return ReadObject<driver::KeeperClient>(state, 1, "keeper");
}

// Keeper:number() -> integer
// The keeper's own number, by which ranks know that they share it.
int Number(lua_State* state) {
  return PushInteger(state, static_cast<int64_t>(ReadKeeper(state).number()));
}

// Keeper:newest_start() -> integer
// The newest start of the run that the keeper knew at keep.connect; 0: none.
int NewestStart(lua_State* state) { return PushInteger(state, ReadKeeper(state).newest_start()); }

// Keeper:begin(start: integer)
// Says to which start of the run this process belongs. From then on the keeper refuses what
// processes of earlier starts put or drop. Raises an error if the keeper knows a newer start.
int Begin(lua_State* state) {
  Check(ReadKeeper(state).Begin(ReadInteger(state, 2, "begin: start")));
  return 0;
}

// Keeper:put(slab: Slab, owner: integer, step: integer, world: integer, crc32: string,
//     start: integer)
// Hands over a slab. It replaces what the owner has of this step and later ones. start: the start
// of the run that took the snapshot.
int Put(lua_State* state) {
  const SharedSlab& slab = ReadObject<SharedSlab>(state, 2, "slab");
  driver::Snapshot snapshot;
  snapshot.owner = static_cast<int32_t>(ReadInteger(state, 3, "put: owner"));
  snapshot.step = ReadInteger(state, 4, "put: step");
  snapshot.world = static_cast<int32_t>(ReadInteger(state, 5, "put: world"));
  snapshot.bytes = slab->bytes();
  if (!absl::SimpleHexAtoi(ReadString(state, 6, "put: crc32"), &snapshot.crc32))
    throw Error("put: crc32 must be hexadecimal digits");
  snapshot.start = ReadInteger(state, 7, "put: start");
  Check(ReadKeeper(state).Put(snapshot, slab->fd()));
  return 0;
}

// Keeper:drop(owner: integer, step: integer)
int Drop(lua_State* state) {
  const auto owner = static_cast<int>(ReadInteger(state, 2, "drop: owner"));
  Check(ReadKeeper(state).Drop(owner, ReadInteger(state, 3, "drop: step")));
  return 0;
}

// Keeper:list() -> {owner: integer, step: integer, world: integer, bytes: integer, crc32: string,
//     start: integer}[]
// The shares of states that it has. owner: the rank; world: the number of ranks of the run; start:
// shares of two starts are not one state.
int List(lua_State* state) {
  const std::vector<driver::Snapshot> snapshots = ValueOrThrow(ReadKeeper(state).List());
  return PushArray(state, snapshots, [&](const driver::Snapshot& one) {
    lua_newtable(state);
    SetInteger(state, "owner", one.owner);
    SetInteger(state, "step", one.step);
    SetInteger(state, "world", one.world);
    SetInteger(state, "bytes", static_cast<int64_t>(one.bytes));
    SetString(state, "crc32", absl::StrFormat("%08x", one.crc32));
    SetInteger(state, "start", one.start);
  });
}

// Keeper:get(owner: integer, step: integer) -> Slab
// Raises an error if the keeper has no such snapshot.
int Get(lua_State* state) {
  const auto owner = static_cast<int>(ReadInteger(state, 2, "get: owner"));
  const int fd = ValueOrThrow(ReadKeeper(state).Get(owner, ReadInteger(state, 3, "get: step")));
  return PushObject(state, std::make_shared<driver::Slab>(ValueOrThrow(driver::Slab::Take(fd))));
}

}  // namespace

int OpenKeep(lua_State* state) {
  RegisterObject<TensorFile>(state, {{"bytes", PackedBytes}, {"write", PackedWrite}});
  RegisterObject<SharedSlab>(state,
                             {{"bytes", SlabBytes}, {"path", SlabPath}, {"tensor", SlabTensor}});
  RegisterObject<driver::KeeperClient>(state, {{"number", Number},
                                               {"newest_start", NewestStart},
                                               {"begin", Begin},
                                               {"put", Put},
                                               {"drop", Drop},
                                               {"list", List},
                                               {"get", Get}});
  lua_newtable(state);
  SetFunctions(state, {{"pack", Pack}, {"slab", NewSlab}, {"name", Name}, {"connect", Connect}});
  return 1;
}

}  // namespace lockstep::lua
