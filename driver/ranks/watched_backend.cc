#include "driver/ranks/watched_backend.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "driver/watching/own_work.h"

namespace lockstep::driver {
namespace {

// "float32 {4, 8}, int64 {2}", or what the caller says that the tensors are.
std::string DescribeTensors(at::TensorList tensors) {
  if (!CollectiveSubject::Current().empty()) return CollectiveSubject::Current();
  constexpr size_t kShown = 8;
  std::vector<std::string> parts;
  for (const at::Tensor& tensor : tensors.slice(0, std::min(tensors.size(), kShown))) {
    parts.push_back(absl::StrCat(std::string(c10::getDtypeNames(tensor.scalar_type()).first), " {",
                                 absl::StrJoin(tensor.sizes(), ", "), "}"));
  }
  if (tensors.size() > kShown) parts.push_back(absl::StrCat("... ", tensors.size(), " in all"));
  return absl::StrJoin(parts, ", ");
}

std::string Join(const std::string& a, const std::string& b) {
  return absl::StrCat(a, a.empty() || b.empty() ? "" : " ", b);
}

std::string NameOf(const c10d::ReduceOp& op) {
  static constexpr const char* kNames[] = {"sum",  "avg", "product", "min",       "max",
                                           "band", "bor", "bxor",    "premul_sum"};
  const auto index = static_cast<size_t>(static_cast<c10d::ReduceOp::RedOpType>(op));
  return index < std::size(kNames) ? kNames[index] : "reduction";
}

}  // namespace

WatchedBackend::WatchedBackend(c10::intrusive_ptr<c10d::Backend> backend, std::string group,
                               const std::string& key, std::vector<int> ranks,
                               std::shared_ptr<Activity> activity, std::chrono::milliseconds limit,
                               Compare compare, std::shared_ptr<CallComparison> calls,
                               WithoutTensors without_tensors)
    : Backend(backend->getRank(), backend->getSize()),
      backend_(std::move(backend)),
      group_(std::move(group)),
      ranks_(std::move(ranks)),
      activity_(std::move(activity)),
      limit_(limit),
      compare_(std::move(compare)),
      calls_compared_(std::move(calls)),
      without_tensors_(without_tensors),
      key_(key),
      sequence_(activity_->AddGroupSequence(key_, ranks_)) {}

std::string WatchedBackend::FromRank(int64_t position) const {
  return absl::StrCat("from rank ", ranks_.at(static_cast<size_t>(position)));
}

std::string WatchedBackend::ToRank(int64_t position) const {
  return absl::StrCat("to rank ", ranks_.at(static_cast<size_t>(position)));
}

void WatchedBackend::CompareCall(const std::string& what) {
  if (compare_ == nullptr) return;
  const Waiting waiting;
  compare_(absl::StrCat("collective ", calls_ + 1, " of ", group_), what, activity_->FindPlace());
}

void WatchedBackend::Refuse(const std::string& what, const std::string& place) {
  ++calls_;  // as the ranks that do not refuse it
  if (calls_compared_ != nullptr) calls_compared_->Refuse(what, place);
}

WatchedBackend::WorkPointer WatchedBackend::Run(const char* name, const std::string& arguments,
                                                at::TensorList tensors,
                                                const std::function<WorkPointer()>& call) {
  const std::string what = Join(Join(name, DescribeTensors(tensors)), arguments);
  const std::string place = activity_->FindPlace();
  CompareCall(what);
  // Ranks have different parts in a broadcast, and a barrier moves nothing: each rank may call them
  // on a line of its own.
  const bool is_one_place =
      std::strcmp(name, "broadcast") != 0 && std::strcmp(name, "barrier") != 0;
  return RunUnchecked(what, place, [&] {
    if (compare_ == nullptr && calls_compared_ != nullptr) {
      const Waiting waiting;
      calls_compared_->Compare(what, place, is_one_place);
    }
    return call();
  });
}

WatchedBackend::WorkPointer WatchedBackend::RunUnchecked(const std::string& what,
                                                         const std::string& place,
                                                         const std::function<WorkPointer()>& call) {
  return Record(sequence_, ++calls_, what, place, call);
}

WatchedBackend::WorkPointer WatchedBackend::Record(int sequence, int64_t number,
                                                   const std::string& what,
                                                   const std::string& place,
                                                   const std::function<WorkPointer()>& call,
                                                   bool is_message) {
  const bool ends_in_wait = is_message && backend_->getBackendName() == "gloo";
  const int64_t id =
      activity_->Start({group_, number, what, place, limit_, sequence, ends_in_wait});
  WorkPointer work;
  try {
    const BlockedIn blocked(*activity_, id);
    work = call();
    // NCCL's waits do not block the CPU.
    if (backend_->getBackendName() != "nccl") {
      work = MeasureWait(std::move(work), [activity = activity_, id](bool waits) {
        activity->NoteBlocked(id, waits);
      });
    }
  } catch (...) {
    activity_->SetWork(id, nullptr);
    throw;
  }
  activity_->SetWork(
      id, without_tensors_ != nullptr && work != nullptr ? without_tensors_(work) : work);
  return work;
}

WatchedBackend::WorkPointer WatchedBackend::endCoalescing() {
  return RunUnchecked("coalesced collectives", activity_->FindPlace(),
                      [&] { return backend_->endCoalescing(); });
}

WatchedBackend::WorkPointer WatchedBackend::broadcast(Tensors& tensors,
                                                      const c10d::BroadcastOptions& options) {
  return Run("broadcast", FromRank(options.rootRank), tensors,
             [&] { return backend_->broadcast(tensors, options); });
}

WatchedBackend::WorkPointer WatchedBackend::allreduce(Tensors& tensors,
                                                      const c10d::AllreduceOptions& options) {
  return Run("all_reduce", NameOf(options.reduceOp), tensors,
             [&] { return backend_->allreduce(tensors, options); });
}

WatchedBackend::WorkPointer WatchedBackend::allreduce_sparse(
    Tensors& tensors, const c10d::AllreduceOptions& options) {
  return Run("all_reduce_sparse", NameOf(options.reduceOp), tensors,
             [&] { return backend_->allreduce_sparse(tensors, options); });
}

WatchedBackend::WorkPointer WatchedBackend::reduce(Tensors& tensors,
                                                   const c10d::ReduceOptions& options) {
  return Run("reduce", Join(NameOf(options.reduceOp), ToRank(options.rootRank)), tensors,
             [&] { return backend_->reduce(tensors, options); });
}

WatchedBackend::WorkPointer WatchedBackend::allgather(TensorLists& outputs, Tensors& inputs,
                                                      const c10d::AllgatherOptions& options) {
  return Run("all_gather", "", inputs,
             [&] { return backend_->allgather(outputs, inputs, options); });
}

WatchedBackend::WorkPointer WatchedBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                            const c10d::AllgatherOptions& options) {
  return Run("all_gather_into_tensor", "", input,
             [&] { return backend_->_allgather_base(output, input, options); });
}

WatchedBackend::WorkPointer WatchedBackend::reduce_scatter(
    Tensors& outputs, TensorLists& inputs, const c10d::ReduceScatterOptions& options) {
  return Run("reduce_scatter", NameOf(options.reduceOp), outputs,
             [&] { return backend_->reduce_scatter(outputs, inputs, options); });
}

WatchedBackend::WorkPointer WatchedBackend::_reduce_scatter_base(
    at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) {
  return Run("reduce_scatter_tensor", NameOf(options.reduceOp), input,
             [&] { return backend_->_reduce_scatter_base(output, input, options); });
}

// Ranks may give and take different amounts: the dtype alone is alike.
WatchedBackend::WorkPointer WatchedBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                          std::vector<int64_t>& output_sizes,
                                                          std::vector<int64_t>& input_sizes,
                                                          const c10d::AllToAllOptions& options) {
  return Run("all_to_all", std::string(c10::getDtypeNames(input.scalar_type()).first), {}, [&] {
    return backend_->alltoall_base(output, input, output_sizes, input_sizes, options);
  });
}

WatchedBackend::Messages& WatchedBackend::MessagesWith(bool is_send, int peer, int tag) {
  const int other = ranks_.at(static_cast<size_t>(peer));
  const int own = ranks_.at(static_cast<size_t>(getRank()));
  const std::string pair = absl::StrCat(key_, ", rank ", is_send ? own : other, " to ",
                                        is_send ? other : own, ", tag ", tag);
  const std::string sent = pair + ", sent", received = pair + ", received";
  Messages& messages = messages_[is_send ? sent : received];
  if (messages.sequence < 0) {
    messages.sequence = activity_->AddSequence(
        {is_send ? sent : received, is_send ? received : sent, key_, {other}});
  }
  return messages;
}

WatchedBackend::WorkPointer WatchedBackend::send(Tensors& tensors, int destination, int tag) {
  Messages& messages = MessagesWith(/*is_send=*/true, destination, tag);
  return Record(
      messages.sequence, ++messages.sent,
      absl::StrCat("send ", DescribeTensors(tensors), " ", ToRank(destination), ", tag ", tag),
      activity_->FindPlace(), [&] { return backend_->send(tensors, destination, tag); },
      /*is_message=*/true);
}

WatchedBackend::WorkPointer WatchedBackend::recv(Tensors& tensors, int source, int tag) {
  Messages& messages = MessagesWith(/*is_send=*/false, source, tag);
  return Record(
      messages.sequence, ++messages.sent,
      absl::StrCat("recv ", DescribeTensors(tensors), " ", FromRank(source), ", tag ", tag),
      activity_->FindPlace(), [&] { return backend_->recv(tensors, source, tag); },
      /*is_message=*/true);
}

WatchedBackend::WorkPointer WatchedBackend::barrier(const c10d::BarrierOptions& options) {
  return Run("barrier", "", {}, [&] { return backend_->barrier(options); });
}

c10::intrusive_ptr<WatchedBackend> WatchedBackendOf(c10d::ProcessGroup& group) {
  return c10::dynamic_intrusive_pointer_cast<WatchedBackend>(group.getBackend(c10::kCPU));
}

void RefuseCall(c10d::ProcessGroup& group, const std::string& what, const std::string& place) {
  const auto watched = WatchedBackendOf(group);
  if (watched != nullptr) watched->Refuse(what, place);
}

}  // namespace lockstep::driver
