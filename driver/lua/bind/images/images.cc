// lockstep.core.images: pictures, and the programs that read videos.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ATen/ops/empty.h"
#include "ATen/ops/from_blob.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "driver/images/decode.h"
#include "driver/images/patches.h"
#include "driver/images/ppm.h"
#include "driver/images/program.h"
#include "driver/lua/bind/open.h"
#include "driver/lua/tensor/tensor.h"
#include "driver/lua/vm/stack.h"
#include "driver/lua/vm/status.h"
#include "driver/lua/vm/vm.h"

namespace lockstep::lua {
namespace {

using images::Image;

// Pushes uint8 [3, H, W]: a view of the rows of RGB, which are not copied.
int PushImage(lua_State* state, Image image, const std::string& caller) {
  const std::shared_ptr<uint8_t[]> pixels = std::move(image.pixels);
  const at::Tensor rows = at::from_blob(
      pixels.get(), {image.height, image.width, 3}, [pixels](void*) {}, at::kByte);
  return PushTensor(state, PrefixErrors(caller, [&] { return rows.permute({2, 0, 1}); }));
}

images::DecodeOptions ReadOptions(lua_State* state, int index) {
  images::DecodeOptions options;
  if (ReadBoolean(state, index, "images: white")) options.alpha = images::Alpha::kWhite;
  options.max_pixels = ReadInteger(state, index + 1, "images: max_pixels");
  return options;
}

int PushDecoded(lua_State* state, absl::StatusOr<Image> image, const std::string& caller) {
  return PushImage(state, ValueOrThrow(std::move(image), caller + ": "), caller);
}

// is_image(bytes: string) -> boolean
// Returns whether the bytes begin as a JPEG, PNG or WebP file does.
int IsImage(lua_State* state) {
  return PushBoolean(state, images::IsImage(ReadString(state, 1, "images: bytes")));
}

// decode(bytes: string, white: boolean, max_pixels: integer, caller: string) -> torch.Tensor
// Blends over white if `white`, else drops alpha. Returns uint8 [3, H, W], a view of [H, W, 3].
// caller: what errors begin with.
int Decode(lua_State* state) {
  const std::string bytes = ReadString(state, 1, "images: bytes");
  const std::string caller = ReadString(state, 4, "images: caller");
  return PushDecoded(state, images::DecodeImage(bytes, ReadOptions(state, 2)), caller);
}

// read(path: string, white: boolean, max_pixels: integer, caller: string) -> torch.Tensor
// Decodes a file. Returns uint8 [3, H, W], a view of [H, W, 3].
int Read(lua_State* state) {
  const std::string path = ReadString(state, 1, "images: path");
  const std::string caller = ReadString(state, 4, "images: caller");
  return PushDecoded(state, images::ReadImageFile(path, ReadOptions(state, 2)), caller);
}

// patches(frames: torch.Tensor, table: torch.Tensor, patch: integer, temporal: integer,
//     merge: integer) -> torch.Tensor
// The Lua library has checked the sizes. frames: uint8 [F, 3, H, W], H and W multiples of patch *
// merge; table: float32 [3, 256], what a byte of each channel becomes; patch: pixels of a patch's
// side; temporal: frames of a patch; merge: patches of a block's side; result: float32 [patches, 3
// * temporal * patch * patch].
int Patches(lua_State* state) {
  const at::Tensor& frames = ReadTensor(state, 1, "images: frames");
  const at::Tensor& table = ReadTensor(state, 2, "images: table");
  images::Patching patching;
  patching.patch = ReadInteger(state, 3, "images: patch");
  patching.temporal = ReadInteger(state, 4, "images: temporal");
  patching.merge = ReadInteger(state, 5, "images: merge");
  if (frames.dim() != 4 || frames.size(1) != 3 || frames.scalar_type() != at::kByte ||
      !frames.device().is_cpu() || frames.numel() == 0)
    throw Error("images: frames must be uint8 [F, 3, H, W] on the CPU, got " + Describe(frames));
  if (table.dim() != 2 || table.size(0) != 3 || table.size(1) != 256 ||
      table.scalar_type() != at::kFloat || !table.device().is_cpu())
    throw Error("images: the table must be float32 [3, 256] on the CPU, got " + Describe(table));
  patching.frames = frames.size(0);
  patching.height = frames.size(2);
  patching.width = frames.size(3);
  const int64_t block = patching.patch * patching.merge;
  if (patching.patch < 1 || patching.merge < 1 || patching.temporal < 1 ||
      patching.height % block != 0 || patching.width % block != 0) {
    throw Error(absl::StrCat("images: ", patching.height, " x ", patching.width,
                             " pixels are not whole blocks of ", block));
  }
  const at::Tensor rows = frames.permute({0, 2, 3, 1}).contiguous();
  const at::Tensor values = table.contiguous();
  at::Tensor out = at::empty({patching.num_patches(), patching.patch_values()}, at::kFloat);
  images::CutPatches(patching, rows.const_data_ptr<uint8_t>(), values.const_data_ptr<float>(),
                     out.data_ptr<float>());
  return PushTensor(state, std::move(out));
}

// Runs the program of arguments 1 (string[]) and 2 (max_bytes). Sets `missing` if that program does
// not exist.
images::ProgramOutput RunArguments(lua_State* state, const std::string& caller, bool& missing) {
  const std::vector<std::string> arguments =
      ReadStrings(state, 1, "images: arguments", "an argument");
  absl::StatusOr<images::ProgramOutput> output =
      images::RunProgram(arguments, ReadInteger(state, 2, "images: max_bytes"));
  missing = output.status().code() == absl::StatusCode::kNotFound;
  if (missing) return {};
  return ValueOrThrow(std::move(output), caller + ": ");
}

// run(arguments: string[], max_bytes: integer, caller: string) -> integer?, string?, string?
// Runs a program without a shell. Returns its exit status, output and errors, or nothing if there
// is no such program. Output of more than max_bytes is an error.
int Run(lua_State* state) {
  bool missing = false;
  const images::ProgramOutput output =
      RunArguments(state, ReadString(state, 3, "images: caller"), missing);
  if (missing) return 0;
  PushInteger(state, output.code);
  PushString(state, output.out);
  PushString(state, output.err);
  return 3;
}

// frames(arguments: string[], max_bytes: integer, caller: string)
//     -> integer?, torch.Tensor[]?, string?
// As run, for a program that writes PPM files: frames in place of its output, uint8 [3, H, W],
// views of one buffer. No frames if the program failed.
int Frames(lua_State* state) {
  const std::string caller = ReadString(state, 3, "images: caller");
  bool missing = false;
  images::ProgramOutput output = RunArguments(state, caller, missing);
  if (missing) return 0;
  const auto bytes = std::make_shared<std::string>(std::move(output.out));
  std::vector<images::PpmFrame> frames;
  if (output.code == 0) frames = ValueOrThrow(images::FindPpmFrames(*bytes), caller + ": ");
  PushInteger(state, output.code);
  PushArray(state, frames, [&](const images::PpmFrame& frame) {
    const at::Tensor rows = at::from_blob(
        bytes->data() + frame.begin, {frame.height, frame.width, 3}, [bytes](void*) {}, at::kByte);
    return PushTensor(state, rows.permute({2, 0, 1}));
  });
  PushString(state, output.err);
  return 3;
}

}  // namespace

int OpenImages(lua_State* state) {
  lua_newtable(state);
  SetFunctions(state, {{"is_image", IsImage},
                       {"decode", Decode},
                       {"read", Read},
                       {"patches", Patches},
                       {"run", Run},
                       {"frames", Frames}});
  return 1;
}

}  // namespace lockstep::lua
