#include "base/torch/copies/recording_engine.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "ATen/EmptyTensor.h"
#include "ATen/core/grad_mode.h"
#include "absl/strings/str_cat.h"
#include "c10/util/Exception.h"

// A stream runs its operations in order, so a state of all streams is how many each has done. From
// the state in which none has begun, Problems() visits every state that can be reached. In each,
// and for each operation that may run next, the operations that the host gave earlier and that
// touch the same elements must be done.

namespace lockstep::base {

class RecordingEngine::Event : public CopyEvent {
 public:
  Event(RecordingEngine* engine, int stream, size_t position)
      : engine_(engine), stream_(stream), position_(position) {}

  bool IsFinished() const override {
    engine_->CheckDevice();
    if (!engine_->is_finished()) return false;
    NoteFinished();
    return true;
  }

  void Wait() const override {
    engine_->CheckDevice();
    NoteFinished();
  }

  int stream() const { return stream_; }
  size_t position() const { return position_; }

 private:
  void NoteFinished() const {
    size_t& known = engine_->known_[stream_];
    known = std::max(known, position_);
  }

  RecordingEngine* const engine_;
  const int stream_;
  const size_t position_;
};

namespace {

constexpr int kHost = RecordingEngine::kStreams - 1;

int IndexOf(c10::Stream stream) { return static_cast<int>(stream.id()); }

void Visit(const at::Tensor& tensor, int64_t dim, int64_t element, std::set<int64_t>* bytes) {
  if (dim == tensor.dim()) {
    for (int64_t byte = 0; byte < static_cast<int64_t>(tensor.itemsize()); ++byte)
      bytes->insert(element * static_cast<int64_t>(tensor.itemsize()) + byte);
    return;
  }
  for (int64_t i = 0; i < tensor.size(dim); ++i)
    Visit(tensor, dim + 1, element + i * tensor.stride(dim), bytes);
}

}  // namespace

void RecordingEngine::CheckDevice() const { TORCH_CHECK(!has_failed, "the device has failed"); }

bool RecordingEngine::Access::Conflicts(const Access& other) const {
  if (memory != other.memory || buffer != other.buffer || !(is_write || other.is_write))
    return false;
  if (is_everything || other.is_everything) return true;
  return std::any_of(bytes.begin(), bytes.end(),
                     [&](int64_t byte) { return other.bytes.count(byte) > 0; });
}

RecordingEngine::Access RecordingEngine::AccessTo(const at::Tensor& tensor, bool is_write) const {
  const auto found = buffers_.find(tensor.storage().data());
  Access access{
      .memory = nullptr, .buffer = 0, .bytes = {}, .is_everything = false, .is_write = is_write};
  if (found == buffers_.end()) {
    access.memory = tensor.storage().data();
    access.is_everything = true;  // a block of a pool, or an array of the host
    return access;
  }
  access.buffer = found->second.id;
  Visit(tensor, 0, tensor.storage_offset(), &access.bytes);
  return access;
}

std::string RecordingEngine::NameOf(const at::Tensor& tensor) const {
  const auto found = buffers_.find(tensor.storage().data());
  return found == buffers_.end() ? "the host" : absl::StrCat("#", found->second.id);
}

RecordingEngine::Operation& RecordingEngine::Add(int stream, const std::string& text,
                                                 std::vector<Access> accesses) {
  operations_.push_back({stream, queued_[stream]++,
                         absl::StrCat(stream == kHost ? "host" : absl::StrCat(stream), ": ", text),
                         std::move(accesses), known_});
  return operations_.back();
}

at::Tensor RecordingEngine::Make(at::IntArrayRef sizes) {
  const at::Tensor shape = at::detail::empty_cpu(sizes, at::kDouble);
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      Allocate(at::kCPU, static_cast<int64_t>(shape.nbytes())),
      c10::DispatchKeySet(c10::DispatchKey::CPU), shape.dtype());
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  const at::NoGradGuard no_grad;
  tensor.fill_(static_cast<double>(num_buffers_));
  Compute({}, {tensor});
  return tensor;
}

void RecordingEngine::Compute(const std::vector<at::Tensor>& reads,
                              const std::vector<at::Tensor>& writes) {
  Compute(current_, reads, writes);
}

void RecordingEngine::ComputeOnHost(const std::vector<at::Tensor>& reads,
                                    const std::vector<at::Tensor>& writes) {
  Compute(kHost, reads, writes);
  known_[kHost] = queued_[kHost];  // the streams are given nothing before it is done
}

void RecordingEngine::Compute(int stream, const std::vector<at::Tensor>& reads,
                              const std::vector<at::Tensor>& writes) {
  std::vector<Access> accesses;
  std::string text = "compute";
  for (const at::Tensor& tensor : reads) {
    accesses.push_back(AccessTo(tensor, false));
    absl::StrAppend(&text, " from ", NameOf(tensor));
  }
  for (const at::Tensor& tensor : writes) {
    accesses.push_back(AccessTo(tensor, true));
    absl::StrAppend(&text, " to ", NameOf(tensor));
  }
  Add(stream, text, std::move(accesses));
}

c10::Stream RecordingEngine::Current(at::Device device) {
  CheckDevice();
  return c10::Stream(c10::Stream::UNSAFE, device, current_);
}

c10::Stream RecordingEngine::Copies(at::Device device) {
  CheckDevice();
  return c10::Stream(c10::Stream::UNSAFE, device, 2 + current_);
}

EventPointer RecordingEngine::Record(c10::Stream stream) {
  CheckDevice();
  return std::make_shared<Event>(this, IndexOf(stream), queued_[IndexOf(stream)]);
}

void RecordingEngine::MakeWait(c10::Stream stream, const EventPointer& event) {
  CheckDevice();
  if (event == nullptr) return;
  const auto& point = static_cast<const Event&>(*event);
  size_t& after = Add(IndexOf(stream), "wait").after[point.stream()];
  after = std::max(after, point.position());
}

c10::Storage RecordingEngine::Allocate(at::Device device, int64_t bytes) {
  CheckDevice();
  TORCH_CHECK(has_memory(), "the device has no memory");
  struct Owned {
    std::shared_ptr<RecordingEngine> engine;
    void* data;
  };
  void* const data = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
  buffers_[data] = {++num_buffers_, current_, {}};
  const auto free = [](void* context) {
    const std::unique_ptr<Owned> owned(static_cast<Owned*>(context));
    owned->engine->Free(owned->data);
  };
  return c10::Storage(c10::Storage::use_byte_size_t(), static_cast<size_t>(bytes),
                      at::DataPtr(data, new Owned{shared_from_this(), data}, free, device));
}

void RecordingEngine::Free(void* data) {
  const Buffer buffer = buffers_.at(data);
  const Access everything{
      .memory = nullptr, .buffer = buffer.id, .bytes = {}, .is_everything = true, .is_write = true};
  Positions& after = Add(buffer.owner, absl::StrCat("free #", buffer.id), {everything}).after;
  for (const int user : buffer.users)
    if (user != buffer.owner) after[user] = std::max(after[user], queued_[user]);
  buffers_.erase(data);
  std::free(data);
}

void RecordingEngine::AlsoUsedBy(const c10::Storage& storage, c10::Stream stream) {
  CheckDevice();
  const auto found = buffers_.find(storage.data());
  if (found != buffers_.end()) found->second.users.insert(IndexOf(stream));
}

void RecordingEngine::Copy(const at::Tensor& to, const at::Tensor& from, c10::Stream stream) {
  CheckDevice();
  to.copy_(from);
  Add(IndexOf(stream), absl::StrCat("copy ", NameOf(from), " to ", NameOf(to)),
      {AccessTo(from, false), AccessTo(to, true)});
}

void RecordingEngine::CopyOnHost(const at::Tensor& to, const at::Tensor& from) {
  to.copy_(from);
  ComputeOnHost({from}, {to});
}

HostMemory RecordingEngine::host_memory() { return PageableMemory(); }

std::vector<std::string> RecordingEngine::Problems() const {
  std::array<std::vector<const Operation*>, kStreams> streams;
  for (const Operation& operation : operations_) streams[operation.stream].push_back(&operation);
  // For each operation: earlier operations of other streams that conflict with it.
  std::map<const Operation*, std::vector<const Operation*>> before;
  for (size_t later = 0; later < operations_.size(); ++later)
    for (size_t earlier = 0; earlier < later; ++earlier) {
      const Operation &a = operations_[earlier], &b = operations_[later];
      const bool conflict = a.stream != b.stream &&
                            std::any_of(a.accesses.begin(), a.accesses.end(), [&](const Access& x) {
                              return std::any_of(b.accesses.begin(), b.accesses.end(),
                                                 [&](const Access& y) { return x.Conflicts(y); });
                            });
      if (conflict) before[&b].push_back(&a);
    }
  std::set<std::string> problems;
  std::set<Positions> seen = {Positions{}};
  std::vector<Positions> open = {Positions{}};
  bool ends = false;
  while (!open.empty()) {
    const Positions done = open.back();
    open.pop_back();
    bool may_go_on = false;
    for (int stream = 0; stream < kStreams; ++stream) {
      if (done[stream] == streams[stream].size()) continue;
      const Operation* const next = streams[stream][done[stream]];
      bool waits = false;
      for (int other = 0; other < kStreams; ++other) waits |= done[other] < next->after[other];
      if (waits) continue;
      may_go_on = true;
      const auto conflicts = before.find(next);
      if (conflicts != before.end())
        for (const Operation* earlier : conflicts->second)
          if (done[earlier->stream] <= earlier->position)
            problems.insert(absl::StrCat(next->text, " may run before ", earlier->text));
      Positions then = done;
      ++then[stream];
      if (seen.insert(then).second) open.push_back(then);
    }
    ends |= !may_go_on && done == queued_;
  }
  if (!ends) problems.insert("the streams wait for each other");
  return {problems.begin(), problems.end()};
}

}  // namespace lockstep::base
