#include "sharding/fully_shard/host_copies.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <utility>

#include "c10/util/Exception.h"
#include "sharding/fully_shard/flat_memory.h"

namespace lockstep::sharding {
namespace {

void WaitFor(const base::EventPointer& event) {
  if (event != nullptr) event->Wait();
}

}  // namespace

HostCopies::HostCopies(std::shared_ptr<base::CopyEngine> engine, c10::Device device)
    : engine_(std::move(engine)), device_(device) {}

HostCopies::~HostCopies() {
  try {
    WaitFor(uploaded_);
    WaitFor(downloaded_);
  } catch (const std::exception&) {
    // The device has failed. Whoever computes with it learns that.
    uploaded_ = nullptr;
  }
}

at::Tensor HostCopies::Allocate(int64_t elements, at::ScalarType dtype) {
  const int64_t bytes = BytesOf(elements, dtype);
  struct Memory {
    base::HostMemory source;
    void* data;
    int64_t bytes;
  };
  auto memory =
      std::make_unique<Memory>(engine_->host_memory(), nullptr, std::max<int64_t>(bytes, 1));
  void* const data = memory->data = memory->source.allocate(memory->bytes);
  TORCH_CHECK(data != nullptr, "fully_shard: offload = \"host\" needs ", bytes,
              " more bytes of page-locked host memory than the machine gives; use more ranks, or a "
              "higher limit of locked memory (ulimit -l)");
  std::memset(data, 0, static_cast<size_t>(memory->bytes));
  const auto release = [](void* context) {
    const std::unique_ptr<Memory> owned(static_cast<Memory*>(context));
    owned->source.release(owned->data, owned->bytes);
  };
  const c10::Storage storage(c10::Storage::use_byte_size_t(), static_cast<size_t>(bytes),
                             c10::DataPtr(data, memory.release(), release, c10::kCPU));
  return LeafOver(storage, dtype, c10::kCPU, 0, {elements});
}

at::Tensor HostCopies::StartUpload(const at::Tensor& master, at::ScalarType dtype) {
  reads_masters_ = master.scalar_type() == dtype;
  if (!reads_masters_ && !has_cast_) {
    WaitFor(uploaded_);  // which may still read the cast
    if (!cast_.defined()) cast_ = Allocate(master.numel(), dtype);
    engine_->CopyOnHost(cast_, master);
    has_cast_ = true;
  }
  const at::Tensor weights = LeafOver(engine_->Allocate(device_, BytesOf(master.numel(), dtype)),
                                      dtype, device_, 0, {master.numel()});
  const c10::Stream copies = stream();
  // What the current stream has done with this memory before is over.
  engine_->MakeWait(copies, engine_->Record(engine_->Current(device_)));
  engine_->Copy(weights, reads_masters_ ? master : cast_, copies);
  uploaded_ = engine_->Record(copies);
  return weights;
}

void HostCopies::MakeCurrentWait() { engine_->MakeWait(engine_->Current(device_), uploaded_); }

void HostCopies::LeaveMasters() {
  if (std::exchange(reads_masters_, false)) WaitFor(uploaded_);
}

void HostCopies::StartDownload(const at::Tensor& gradient) {
  TORCH_INTERNAL_ASSERT(!arriving_.defined());
  const auto free = std::find_if(gradients_.begin(), gradients_.end(), [&](const auto& memory) {
    return memory.use_count() == 1 && memory.nbytes() == gradient.nbytes();
  });
  if (free != gradients_.end()) {
    arriving_ = LeafOver(*free, gradient.scalar_type(), c10::kCPU, 0, gradient.sizes());
  } else {
    arriving_ = Allocate(gradient.numel(), gradient.scalar_type());
    gradients_.push_back(arriving_.storage());
  }
  const c10::Stream copies = stream();
  engine_->MakeWait(copies, engine_->Record(engine_->Current(device_)));
  engine_->AlsoUsedBy(gradient.storage(), copies);
  engine_->Copy(arriving_, gradient, copies);
  downloaded_ = engine_->Record(copies);
}

at::Tensor HostCopies::FinishDownload() {
  if (arriving_.defined()) WaitFor(downloaded_);
  return std::exchange(arriving_, at::Tensor());
}

}  // namespace lockstep::sharding
