#include "driver/lua/operators/names.h"

#include "absl/strings/str_cat.h"
#include "driver/lua/vm/stack.h"

namespace lockstep::lua {
namespace {

// Names of PyTorch that no operator has, and what to write here.
constexpr struct {
  const char* name;
  const char* hint;
} kFromPython[] = {
    {"linalg", "torch.linalg.inv is torch.linalg_inv here, and so are the others"},
    {"fft", "torch.fft.rfft is torch.fft_rfft here, and so are the others"},
    {"special", "torch.special.entr is torch.special_entr here, and so are the others"},
    {"nn", "layers are in require \"lockstep.nn\", and functions in torch itself"},
    {"optim", "optimizers are in require \"lockstep.optim\""},
    {"distributed", "collectives are in require \"lockstep.distributed\""},
    {"cross_entropy", "use torch.cross_entropy_loss, or nn.cross_entropy"},
    {"interpolate", "use torch.upsample_nearest2d, torch.upsample_bilinear2d and the like"},
    {"unique", "use torch._unique2, torch.unique_dim or torch.unique_consecutive"},
    {"device", "a device is a string here, as \"cuda:0\""},
    {"inf", "use math.huge"},
    {"pi", "use math.pi"},
    {"nan", "use 0 / 0"},
    {"numel", "use x:numel()"},
    {"nelement", "use x:numel()"},
    {"ndimension", "use x:dim()"},
    {"tolist", "use x:totable()"},
    {"numpy", "use x:totable()"},
    {"new_tensor", "use torch.tensor(array, {dtype = x.dtype, device = x.device})"},
};

}  // namespace

std::string NameHint(const std::string& name, const std::vector<std::string>& known) {
  for (const auto& [theirs, hint] : kFromPython) {
    if (name == theirs) return absl::StrCat("; ", hint);
  }
  return DidYouMean(name, known);
}

}  // namespace lockstep::lua
