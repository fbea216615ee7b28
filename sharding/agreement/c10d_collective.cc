#include "sharding/agreement/c10d_collective.h"

#include <cstring>
#include <utility>
#include <vector>

#include "ATen/ops/empty.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "c10/util/Exception.h"

namespace lockstep::sharding {
namespace {

class C10dPending : public Collective::Pending {
 public:
  C10dPending(c10::intrusive_ptr<c10d::Work> work, std::vector<at::Tensor> outputs)
      : work_(std::move(work)), outputs_(std::move(outputs)) {}

  absl::StatusOr<std::vector<std::string>> Wait() override {
    try {
      work_->wait();
    } catch (const c10::Error& error) {
      return absl::UnavailableError(
          absl::StrCat("sharding: a rank was lost: ", error.what_without_backtrace()));
    } catch (const std::exception& error) {
      return absl::UnavailableError(absl::StrCat("sharding: a rank was lost: ", error.what()));
    }
    std::vector<std::string> bytes;
    for (const at::Tensor& output : outputs_) {
      bytes.emplace_back(static_cast<const char*>(output.const_data_ptr()),
                         static_cast<size_t>(output.numel()));
    }
    return bytes;
  }

 private:
  c10::intrusive_ptr<c10d::Work> work_;
  std::vector<at::Tensor> outputs_;
};

}  // namespace

std::unique_ptr<Collective::Pending> C10dCollective::StartAllGather(const std::string& bytes) {
  const int64_t size = static_cast<int64_t>(bytes.size());
  std::vector<at::Tensor> inputs = {at::empty({size}, at::kByte)};
  std::memcpy(inputs[0].mutable_data_ptr(), bytes.data(), bytes.size());
  std::vector<std::vector<at::Tensor>> outputs(1);
  for (int rank = 0; rank < group_->getSize(); ++rank)
    outputs[0].push_back(at::empty({size}, at::kByte));
  c10::intrusive_ptr<c10d::Work> work = group_->allgather(outputs, inputs);
  return std::make_unique<C10dPending>(std::move(work), std::move(outputs[0]));
}

std::string StoreNotes::Key(int position) const { return absl::StrCat(prefix_, "/", position); }

void StoreNotes::Write(const std::string& note) { store_->set(Key(position_), note); }

std::string StoreNotes::Read(int position) {
  try {
    if (!store_->check({Key(position)})) return "";
    return store_->get_to_str(Key(position));
  } catch (const c10::Error&) {
    return "";  // the store's host is gone: the first error remains
  }
}

}  // namespace lockstep::sharding
