#include "sharding/point_to_point/point_to_point.h"

#include <cstdint>
#include <cstring>
#include <vector>

#include "ATen/ops/empty.h"
#include "ATen/ops/zeros.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/torch/element_bytes.h"
#include "base/torch/runs_again.h"
#include "c10/core/DeviceType.h"
#include "c10/core/ScalarType.h"
#include "c10/util/Exception.h"

namespace lockstep::sharding {
namespace {

// A header is text of one size, filled up with zeros.
constexpr int64_t kHeaderBytes = 512;

struct Header {
  int64_t bytes = 0;
  std::string device;  // "cpu", "cuda"
  std::string tensor;  // "float32 {3}"
  std::string place;   // "train.lua:9"
};

Header HeaderOf(const at::Tensor& x, const std::string& place) {
  return {static_cast<int64_t>(x.nbytes()), c10::DeviceTypeName(x.device().type(), true),
          absl::StrCat(std::string(c10::getDtypeNames(x.scalar_type()).first), " {",
                       absl::StrJoin(x.sizes(), ", "), "}"),
          place};
}

at::Tensor WriteHeader(const Header& header) {
  at::Tensor bytes = at::zeros({kHeaderBytes}, at::kByte);
  const std::string text =
      absl::StrCat(header.bytes, "\n", header.device, "\n", header.tensor, "\n", header.place)
          .substr(0, kHeaderBytes - 1);
  std::memcpy(bytes.mutable_data_ptr(), text.data(), text.size());
  return bytes;
}

Header ReadHeader(const at::Tensor& bytes, const Peer& from) {
  const std::string text(static_cast<const char*>(bytes.const_data_ptr()));
  const std::vector<std::string> parts = absl::StrSplit(text, '\n');
  Header header;
  TORCH_CHECK_VALUE(parts.size() == 4 && absl::SimpleAtoi(parts[0], &header.bytes), "rank ",
                    from.rank, " has sent a message without a header; expected one of SendTensor");
  header.device = parts[1];
  header.tensor = parts[2];
  header.place = parts[3];
  return header;
}

}  // namespace

void SendTensor(const at::Tensor& x, const Peer& to, const std::string& place) {
  base::CheckRunsOnce("a message between two ranks");
  std::vector<at::Tensor> header = {WriteHeader(HeaderOf(x, place))};
  std::vector<at::Tensor> values = {
      base::ElementBytes(x.detach().resolve_conj().resolve_neg().contiguous())};
  const auto header_sent = to.group->send(header, to.position, to.tag);
  to.group->send(values, to.position, to.tag)->wait();
  header_sent->wait();
}

void ReceiveTensor(const at::Tensor& x, const Peer& from) {
  base::CheckRunsOnce("a message between two ranks");
  std::vector<at::Tensor> header = {at::zeros({kHeaderBytes}, at::kByte)};
  from.group->recv(header, from.position, from.tag)->wait();
  const Header sent = ReadHeader(header[0], from), own = HeaderOf(x, "");
  const bool fits = sent.tensor == own.tensor && sent.bytes == own.bytes;
  std::vector<at::Tensor> values = {base::ElementBytes(x.detach())};
  // Receives values that do not fit, too: the sender waits for that, and the next call would take
  // them for its own message.
  if (!fits) values[0] = at::empty({sent.bytes}, values[0].options());
  if (sent.device == own.device) from.group->recv(values, from.position, from.tag)->wait();
  TORCH_CHECK_VALUE(fits && sent.device == own.device, "rank ", from.rank, " sends ", sent.tensor,
                    " on ", sent.device, " (", sent.place, "), but x is ", own.tensor, " on ",
                    own.device,
                    "; receive into a tensor of the same dtype, shape and kind of device");
}

}  // namespace lockstep::sharding
