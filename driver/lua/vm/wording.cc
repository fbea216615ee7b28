#include "driver/lua/vm/wording.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace lockstep::lua {
namespace {

// The text before the expected dtype.
constexpr const char* kExpected[] = {"xpected scalar type ",
                                     "following scalar types: ", "xpected dtype ",
                                     "xpected target dtype to be "};

// C++'s names of dtypes, and Lua's.
constexpr std::pair<const char*, const char*> kDtypes[] = {
    {"Long", "int64"},    {"int64", "int64"},    {"int32/int64", "int64"}, {"Int", "int32"},
    {"Float", "float32"}, {"Double", "float64"}, {"Half", "float16"},      {"BFloat16", "bfloat16"},
    {"Bool", "bool"},     {"Byte", "uint8"},
};

// Returns the dtype that the message says was expected, or "".
std::string ExpectedDtype(const std::string& message) {
  for (const char* before : kExpected) {
    size_t begin = message.find(before);
    if (begin == std::string::npos) continue;
    begin += std::char_traits<char>::length(before);
    const std::string word = message.substr(begin, message.find_first_of(" ,;.", begin) - begin);
    for (const auto& [theirs, ours] : kDtypes) {
      if (word == theirs) return ours;
    }
  }
  return "";
}

}  // namespace

std::string InOurWords(std::string message) {
  if (absl::StrContains(message, "find_unused_parameters")) {
    absl::StrReplaceAll(
        {{"keyword argument ", "option "},
         {"`find_unused_parameters=True`", "`find_unused = true`"},
         {"find_unused_parameters=True", "find_unused = true"},
         {"`find_unused_parameters=False`", "`find_unused = false`"},
         {"find_unused_parameters", "find_unused"},
         {"`torch.nn.parallel.DistributedDataParallel`", "`sharding.data_parallel`"},
         {"in DDP constructor", "for sharding.data_parallel"}},
        &message);
  }
  const std::string dtype = ExpectedDtype(message);
  if (!dtype.empty()) {
    absl::StrAppend(&message, "; make the tensor with { dtype = torch.", dtype,
                    " }, or convert it with x:to(torch.", dtype, ")");
  }
  return message;
}

}  // namespace lockstep::lua
