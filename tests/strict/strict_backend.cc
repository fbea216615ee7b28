#include "tests/strict/strict_backend.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <limits>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "c10/core/ScalarType.h"
#include "c10/util/Exception.h"
#include "tests/strict/operation.h"
#include "torch/csrc/autograd/function.h"

namespace lockstep::tests {
namespace {

using Tensors = StrictBackend::Tensors;
using WorkPointer = StrictBackend::WorkPointer;
using c10d::OpType;

constexpr int kGroup = -1;  // among peers: the communicator of all

// The kind of a Gloo message. The rest of its tag counts the messages of its kind.
enum class Kind { kHello, kCollective, kSend, kReceive, kData, kPairHello, kPair, kPairData };

int TagOf(Kind kind, int64_t number) {
  constexpr int kBits = 27;
  return static_cast<int>(static_cast<int64_t>(kind) << kBits | (number & ((1 << kBits) - 1)));
}

bool IsOfNccl(at::ScalarType dtype) {
  constexpr at::ScalarType kDtypes[] = {at::kChar,   at::kByte,     at::kInt,
                                        at::kLong,   at::kHalf,     at::kFloat,
                                        at::kDouble, at::kBFloat16, at::kBool};
  return std::find(std::begin(kDtypes), std::end(kDtypes), dtype) != std::end(kDtypes);
}

void CheckTensors(const std::string& what, const Tensors& tensors) {
  for (const at::Tensor& tensor : tensors) {
    TORCH_CHECK(!tensor.is_sparse() && tensor.is_contiguous(), "strict: \"", what,
                "\": NCCL takes contiguous tensors alone");
    TORCH_CHECK(IsOfNccl(tensor.scalar_type()), "strict: \"", what, "\": NCCL has no dtype ",
                c10::toString(tensor.scalar_type()));
  }
}

// Compares the running backward node with the last one that came here.
NodeOrder CompareNodes(std::optional<uint64_t>& last) {
  const auto node = torch::autograd::get_current_node();
  if (node == nullptr) return NodeOrder::kUnknown;
  const uint64_t number = node->sequence_nr();
  if (number == std::numeric_limits<uint64_t>::max()) return NodeOrder::kUnknown;
  const std::optional<uint64_t> before = std::exchange(last, number);
  if (!before.has_value()) return NodeOrder::kUnknown;
  if (number == *before) return NodeOrder::kSame;
  return number > *before ? NodeOrder::kOfLaterForward : NodeOrder::kOfEarlierForward;
}

// A send or a receive that Gloo refused at once, since the peer is gone. It fails when it is waited
// for, as one does whose peer leaves a moment later.
class RefusedWork : public c10d::Work {
 public:
  explicit RefusedWork(std::exception_ptr error) { finish(std::move(error)); }
  void abort() override {}  // nothing is under way
};

template <typename Start>
WorkPointer StartOrRefuse(const Start& start) {
  try {
    return start();
  } catch (const std::exception&) {
    return c10::make_intrusive<RefusedWork>(std::current_exception());
  }
}

}  // namespace

std::string StrictBackend::SizesOf(const Tensors& tensors) {
  std::vector<int64_t> sizes;
  for (const at::Tensor& tensor : tensors) sizes.push_back(tensor.numel());
  if (sizes.empty()) return "nothing";
  return absl::StrCat(absl::StrJoin(sizes, ", "), " of ", c10::toString(tensors[0].scalar_type()));
}

void StrictBackend::CheckOne(const char* name, size_t count) {
  TORCH_CHECK(count == 1, "strict: ", name, ": NCCL takes one tensor for each call, not ", count);
}

struct StrictBackend::Message {
  at::Tensor tensor;
  int peer = 0;
  Ticket ticket;
  int data_tag = 0;

  bool is_send() const { return ticket.role == Role::kSend; }
};

struct StrictBackend::Appointment {
  int peer = 0;
  Ticket own;
  at::Tensor received;
  WorkPointer send, receive;
};

struct StrictBackend::Communicator {
  std::vector<int> peers;  // without this rank
  bool is_pair = false;
  bool has_met = false;
  std::thread::id thread;      // the one that issued the first operation
  int64_t num_operations = 0;  // collectives, or operations of the pair
  struct Counts {
    int64_t sent = 0, received = 0;  // in batches
    std::optional<uint64_t> last_node_of_sends, last_node_of_receives;
  };
  std::map<int, Counts> with_peer;
  std::optional<uint64_t> last_node;  // of collectives
  Stream stream;
};

StrictBackend::StrictBackend(c10::intrusive_ptr<c10d::Backend> gloo, std::string group,
                             std::vector<int> ranks)
    : Backend(gloo->getRank(), gloo->getSize()),
      gloo_(std::move(gloo)),
      group_(std::move(group)),
      ranks_(std::move(ranks)) {
  TORCH_CHECK_VALUE(static_cast<int>(ranks_.size()) == getSize(), "strict: group ", group_, " has ",
                    getSize(), " ranks, but ", ranks_.size(), " are named");
}

StrictBackend::~StrictBackend() {
  {
    const std::lock_guard lock(mutex_);
    is_closing_ = true;
    for (const WorkPointer& work : under_way_) work->abort();
  }
  communicators_.clear();
}

std::string StrictBackend::Complain(const std::string& text) const {
  return absl::StrCat("strict: group \"", group_, "\": ", text);
}

// --- Gloo

WorkPointer StrictBackend::SendNow(const at::Tensor& tensor, int peer, int tag) {
  const std::scoped_lock lock(mutex_, gloo_mutex_);
  Tensors tensors = {tensor};
  return StartOrRefuse([&] { return gloo_->send(tensors, peer, tag); });
}

WorkPointer StrictBackend::ReceiveNow(const at::Tensor& tensor, int peer, int tag) {
  const std::scoped_lock lock(mutex_, gloo_mutex_);
  Tensors tensors = {tensor};
  return StartOrRefuse([&] { return gloo_->recv(tensors, peer, tag); });
}

void StrictBackend::WaitFor(const WorkPointer& work, int peer, const std::string& purpose) {
  {
    const std::lock_guard lock(mutex_);
    TORCH_CHECK(!is_closing_, Complain("it was closed while it waited"));
    under_way_.push_back(work);
  }
  std::string cause;
  try {
    if (!work->wait()) cause = "this rank closed the group";
  } catch (...) {
    cause = TextOf(std::current_exception());
  }
  {
    const std::lock_guard lock(mutex_);
    // Failed operations are kept: Gloo may still have their memory on a list.
    if (cause.empty()) under_way_.erase(std::find(under_way_.begin(), under_way_.end(), work));
  }
  TORCH_CHECK(cause.empty(), Complain(absl::StrCat("rank ", Name(rank_), " waited for rank ",
                                                   Name(peer), " ", purpose, ": ", cause)));
}

StrictBackend::Appointment StrictBackend::Tell(const Ticket& ticket, int peer, int out_tag,
                                               int in_tag) {
  const auto size = static_cast<int64_t>(sizeof(Ticket));
  const at::Tensor sent = at::empty({size}, at::kByte);
  std::memcpy(sent.mutable_data_ptr(), &ticket, sizeof(Ticket));
  Appointment appointment = {peer, ticket, at::empty({size}, at::kByte), nullptr, nullptr};
  appointment.receive = ReceiveNow(appointment.received, peer, in_tag);
  appointment.send = SendNow(sent, peer, out_tag);
  return appointment;
}

void StrictBackend::Agree(const std::vector<Appointment>& appointments) {
  for (const Appointment& appointment : appointments) {
    const std::string purpose =
        absl::StrCat("to issue its side of \"", appointment.own.what, "\", and it never did");
    WaitFor(appointment.receive, appointment.peer, purpose);
    WaitFor(appointment.send, appointment.peer, purpose);
  }
  for (const Appointment& appointment : appointments) {
    Ticket other;
    std::memcpy(&other, appointment.received.const_data_ptr(), sizeof(Ticket));
    const std::string problem =
        FindDisagreement(Name(rank_), appointment.own, Name(appointment.peer), other);
    if (!problem.empty()) throw Disagreement({__func__, __FILE__, __LINE__}, Complain(problem));
  }
}

void StrictBackend::Carry(const std::vector<Message>& messages) {
  std::vector<WorkPointer> works;
  for (const Message& message : messages) {
    if (message.tensor.numel() == 0) {
      works.emplace_back();
      continue;
    }
    works.push_back(message.is_send() ? SendNow(message.tensor, message.peer, message.data_tag)
                                      : ReceiveNow(message.tensor, message.peer, message.data_tag));
  }
  for (size_t i = 0; i < works.size(); ++i) {
    if (works[i] != nullptr) WaitFor(works[i], messages[i].peer, "to carry its data");
  }
}

// --- Communicators

StrictBackend::Communicator& StrictBackend::OfGroup() {
  auto& communicator = communicators_[kGroup];
  if (communicator == nullptr) {
    communicator = std::make_unique<Communicator>();
    for (int peer = 0; peer < size_; ++peer) {
      if (peer != rank_) communicator->peers.push_back(peer);
    }
  }
  return *communicator;
}

StrictBackend::Communicator& StrictBackend::OfPair(int peer) {
  auto& communicator = communicators_[peer];
  if (communicator == nullptr) {
    communicator = std::make_unique<Communicator>();
    communicator->peers = {peer};
    communicator->is_pair = true;
  }
  return *communicator;
}

void StrictBackend::Meet(Communicator& communicator, const std::string& what) {
  Operation::CheckUnheard();
  if (communicator.has_met) {
    TORCH_CHECK(communicator.thread == std::this_thread::get_id(),
                Complain(absl::StrCat("rank ", Name(rank_), " issued \"", what,
                                      "\" from another thread than the operations before it: "
                                      "the order of two threads is by chance, and NCCL needs one "
                                      "order on all ranks; issue all from one thread")));
    return;
  }
  communicator.has_met = true;
  communicator.thread = std::this_thread::get_id();
  const bool is_pair = communicator.is_pair;
  const int tag = TagOf(is_pair ? Kind::kPairHello : Kind::kHello, 0);
  std::vector<Appointment> appointments;
  for (const int peer : communicator.peers) appointments.push_back(Tell({}, peer, tag, tag));
  const std::string purpose = absl::StrCat(
      "to come for the first operation of a communicator, \"", what, "\" here; NCCL makes the ",
      is_pair ? "communicator of two ranks" : "group's communicator",
      " then, which needs all of its ranks",
      is_pair ? ""
              : " even where a batch has nothing for one of them; let the group begin with a "
                "collective of all ranks");
  for (const Appointment& appointment : appointments) {
    WaitFor(appointment.receive, appointment.peer, purpose);
    WaitFor(appointment.send, appointment.peer, purpose);
  }
}

WorkPointer StrictBackend::Enqueue(Communicator& communicator, OpType type, Tensors outputs,
                                   std::function<void()> run) {
  auto operation = c10::make_intrusive<Operation>(rank_, type, std::move(outputs));
  communicator.stream.Enqueue(operation, std::move(run));
  return operation;
}

WorkPointer StrictBackend::Collective(OpType type, const std::string& what, Tensors checked,
                                      Tensors outputs, std::function<WorkPointer()> run,
                                      const std::vector<int64_t>& gives,
                                      const std::vector<int64_t>& takes) {
  TORCH_CHECK(!batch_.has_value(),
              Complain(absl::StrCat("\"", what,
                                    "\" in a batch: this backend takes sends and "
                                    "receives alone there")));
  CheckTensors(what, checked);
  Communicator& communicator = OfGroup();
  Meet(communicator, what);
  Ticket ticket;
  ticket.after = communicator.num_operations;
  ticket.order = CompareNodes(communicator.last_node);
  ticket.set_what(what);
  const int tag = TagOf(Kind::kCollective, communicator.num_operations++);
  std::vector<Appointment> appointments;
  for (const int peer : communicator.peers) {
    if (!gives.empty()) {
      ticket.gives = gives[static_cast<size_t>(peer)];
      ticket.takes = takes[static_cast<size_t>(peer)];
    }
    appointments.push_back(Tell(ticket, peer, tag, tag));
  }
  return Enqueue(communicator, type, std::move(outputs),
                 [this, what, appointments = std::move(appointments), run = std::move(run)] {
                   Agree(appointments);
                   WorkPointer work;
                   {
                     const std::scoped_lock lock(mutex_, gloo_mutex_);
                     work = run();
                   }
                   try {
                     work->wait();
                   } catch (...) {
                     const std::string cause = TextOf(std::current_exception());
                     TORCH_CHECK(false, Complain(absl::StrCat("\"", what, "\": ", cause)));
                   }
                 });
}

// --- Sends and receives

StrictBackend::Message StrictBackend::MakeMessage(Role role, const Tensors& tensors, int peer,
                                                  int tag) const {
  const bool is_send = role == Role::kSend;
  CheckOne(is_send ? "send" : "recv", tensors.size());
  const std::string what = absl::StrCat(is_send ? "send " : "recv ", SizesOf(tensors),
                                        is_send ? " to rank " : " from rank ", Name(peer));
  CheckTensors(what, tensors);
  TORCH_CHECK(peer != rank_, Complain(absl::StrCat("\"", what, "\" on that rank itself")));
  Message message = {tensors[0], peer, {}, 0};
  message.ticket.role = role;
  message.ticket.tag = tag;
  (is_send ? message.ticket.gives : message.ticket.takes) = tensors[0].numel();
  message.ticket.set_dtype(c10::toString(tensors[0].scalar_type()));
  message.ticket.set_what(what);
  return message;
}

WorkPointer StrictBackend::PointToPoint(Role role, Tensors& tensors, int peer, int tag) {
  const OpType type = role == Role::kSend ? OpType::SEND : OpType::RECV;
  Message message = MakeMessage(role, tensors, peer, tag);
  if (batch_.has_value()) {
    Communicator::Counts& counts = OfGroup().with_peer[peer];
    message.ticket.order =
        CompareNodes(message.is_send() ? counts.last_node_of_sends : counts.last_node_of_receives);
    batch_->push_back(std::move(message));
    auto work = c10::make_intrusive<Operation>(rank_, type, tensors);
    work->Finish(std::make_exception_ptr(c10::Error(
        {__func__, __FILE__, __LINE__},
        Complain("a send or receive in a batch cannot be waited for; wait for the batch"))));
    return work;
  }
  Communicator& communicator = OfPair(peer);
  Meet(communicator, message.ticket.what);
  message.ticket.order = CompareNodes(communicator.last_node);
  const int64_t number = communicator.num_operations++;
  message.data_tag = TagOf(Kind::kPairData, number);
  const int ticket_tag = TagOf(Kind::kPair, number);
  const Appointment appointment = Tell(message.ticket, peer, ticket_tag, ticket_tag);
  return Enqueue(communicator, type, tensors, [this, message, appointment] {
    Agree({appointment});
    Carry({message});
  });
}

WorkPointer StrictBackend::send(Tensors& tensors, int destination, int tag) {
  return PointToPoint(Role::kSend, tensors, destination, tag);
}

WorkPointer StrictBackend::recv(Tensors& tensors, int source, int tag) {
  return PointToPoint(Role::kReceive, tensors, source, tag);
}

void StrictBackend::startCoalescing() {
  TORCH_CHECK(!batch_.has_value(), Complain("a batch within a batch"));
  batch_.emplace();
}

WorkPointer StrictBackend::endCoalescing() {
  TORCH_CHECK(batch_.has_value(), Complain("the end of a batch that has not begun"));
  std::vector<Message> messages = *std::exchange(batch_, std::nullopt);
  if (messages.empty()) return nullptr;
  Communicator& communicator = OfGroup();
  Meet(communicator, messages[0].ticket.what);
  std::vector<Appointment> appointments;
  Tensors received;
  for (Message& message : messages) {
    Communicator::Counts& counts = communicator.with_peer[message.peer];
    const int64_t number = message.is_send() ? counts.sent++ : counts.received++;
    const int as_sender = TagOf(Kind::kSend, number);
    const int as_receiver = TagOf(Kind::kReceive, number);
    message.ticket.after = communicator.num_operations;
    message.data_tag = TagOf(Kind::kData, number);
    appointments.push_back(message.is_send()
                               ? Tell(message.ticket, message.peer, as_sender, as_receiver)
                               : Tell(message.ticket, message.peer, as_receiver, as_sender));
    if (!message.is_send()) received.push_back(message.tensor);
  }
  return Enqueue(communicator, OpType::COALESCED, std::move(received),
                 [this, messages = std::move(messages), appointments = std::move(appointments)] {
                   Agree(appointments);
                   Carry(messages);
                 });
}

}  // namespace lockstep::tests
