// The agreements and shards of sharding/ for Python: python/lockstep/_sockets.py, sharding.py,
// _guard.py and _dataset.py say what the functions do.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "nlohmann/json.hpp"
#include "python/core/boundary.h"
#include "sharding/agreement/agreement.h"
#include "sharding/agreement/gather_texts.h"
#include "sharding/agreement/guard.h"
#include "sharding/agreement/socket_collective.h"
#include "sharding/dataset/pack.h"
#include "sharding/dataset/shard.h"

namespace lockstep::python {
namespace {

using nlohmann::json;

// Functions of Python's C API, by address: this library links no Python. And the exception that a
// handler of a signal raised while the main thread waited, as PyErr_Fetch returns it.
struct Interpreter {
  int (*ensure)() = nullptr;
  void (*release)(int) = nullptr;
  int (*check_signals)() = nullptr;
  void (*fetch)(void**, void**, void**) = nullptr;
  void* exception[3] = {nullptr, nullptr, nullptr};  // type, value, traceback

  // Runs the handlers of signals that have come. Returns whether one has raised an exception.
  bool RunHandlers() {
    if (ensure == nullptr) return false;
    const int state = ensure();
    const bool raised = check_signals() != 0;
    if (raised) fetch(&exception[0], &exception[1], &exception[2]);
    release(state);
    return raised;
  }
};
Interpreter g_interpreter;  // guarded by the interpreter's lock

// Notes that Python keeps in the store of the process group.
class StoreNotes : public sharding::Notes {
 public:
  using WriteFunction = void (*)(const char* note);
  using ReadFunction = void (*)(int position, std::string* note);

  StoreNotes(WriteFunction write, ReadFunction read) : write_(write), read_(read) {}
  void Write(const std::string& note) override { write_(note.c_str()); }
  std::string Read(int position) override {
    std::string note;
    read_(position, &note);
    return note;
  }

 private:
  WriteFunction write_;
  ReadFunction read_;
};

struct StoreGuard {
  StoreNotes notes;
  sharding::Guard guard;
};

// Texts may hold bytes that are no UTF-8, such as those of a file name in an error.
std::string Dump(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

json WriteChunk(const sharding::Chunk& chunk) {
  json parts = json::array();
  for (const sharding::SamplePart& part : chunk)
    parts.push_back({part.sample, part.begin, part.end});
  return parts;
}

sharding::ShardOptions ReadShard(const json& given) {
  sharding::ShardOptions options;
  options.size = given.at("size");
  options.rank = given.at("rank");
  options.world = given.at("world");
  options.seed = static_cast<uint64_t>(given.at("seed").get<int64_t>());
  options.epoch = given.at("epoch");
  options.shuffle = given.at("shuffle");
  options.start = given.at("start");
  const std::string tail = given.at("tail");
  options.tail = tail == "drop"  ? sharding::Tail::kDrop
                 : tail == "pad" ? sharding::Tail::kPad
                                 : sharding::Tail::kUneven;
  return options;
}

}  // namespace
}  // namespace lockstep::python

extern "C" {

using lockstep::python::Check;
using lockstep::python::Guarded;
using lockstep::python::ValueOrThrow;
using lockstep::sharding::Agreement;
using lockstep::sharding::Decision;
using lockstep::sharding::Has;
using lockstep::sharding::Packer;
using lockstep::sharding::Policy;
using lockstep::sharding::Shard;
using lockstep::sharding::SocketCollective;

// Gives PyGILState_Ensure, PyGILState_Release, PyErr_CheckSignals and PyErr_Fetch.
void lockstep_interpreter(int (*ensure)(), void (*release)(int), int (*check_signals)(),
                          void (*fetch)(void**, void**, void**)) {
  lockstep::python::g_interpreter = {ensure, release, check_signals, fetch, {}};
}

// Writes type, value and traceback of the exception that ended a wait with CANCELLED.
void lockstep_interruption(void* exception[3]) {
  auto& interpreter = lockstep::python::g_interpreter;
  for (int i = 0; i < 3; ++i) exception[i] = std::exchange(interpreter.exception[i], nullptr);
}

void lockstep_text_assign(std::string* text, const char* value) { *text = value; }

// Connects to the group's ranks. `exchange` gets this rank's endpoint, and assigns those at `count`
// positions, one a line, to `asked`. It returns 0, or another number after an error of its own.
char* lockstep_collective_connect(int rank, int size, const char* address,
                                  int (*exchange)(const char* own, const int32_t* positions,
                                                  int count, std::string* asked),
                                  double timeout_s, const int32_t* ranks,
                                  SocketCollective** collective) {
  return Guarded([&] {
    auto connected = ValueOrThrow(SocketCollective::Connect(
        rank, size, address,
        [&](const std::string& own,
            const std::vector<int>& positions) -> absl::StatusOr<std::vector<std::string>> {
          std::string asked;
          const std::vector<int32_t> numbers(positions.begin(), positions.end());
          if (exchange(own.c_str(), numbers.data(), static_cast<int>(numbers.size()), &asked) != 0)
            return absl::AbortedError("the exchange failed");
          return std::vector<std::string>(absl::StrSplit(asked, '\n'));
        },
        absl::Seconds(timeout_s), std::vector<int>(ranks, ranks + size)));
    connected->InterruptWhen([] { return lockstep::python::g_interpreter.RunHandlers(); });
    *collective = connected.release();
  });
}

void lockstep_collective_delete(SocketCollective* collective) { delete collective; }

// Writes `size` bytes of each rank to `all`.
char* lockstep_collective_gather(SocketCollective* collective, const char* bytes, int64_t size,
                                 char* all) {
  return Guarded([&] {
    const auto gathered = ValueOrThrow(
        collective->StartAllGather(std::string(bytes, static_cast<size_t>(size)))->Wait());
    for (const std::string& each : gathered) all = std::copy(each.begin(), each.end(), all);
  });
}

// Sets `texts` to a JSON list of the ranks' texts. The caller frees it.
char* lockstep_collective_texts(SocketCollective* collective, const char* text, char** texts) {
  return Guarded([&] {
    *texts = lockstep::python::Give(
        lockstep::python::Dump(ValueOrThrow(lockstep::sharding::GatherTexts(*collective, text))));
  });
}

// Makes an agreement. A null collective stands for one rank.
Agreement* lockstep_agreement_make(SocketCollective* collective, char policy) {
  return std::make_unique<Agreement>(collective, static_cast<Policy>(policy)).release();
}

void lockstep_agreement_delete(Agreement* agreement) { delete agreement; }

char* lockstep_agreement_offer(Agreement* agreement, char has, const char* error) {
  return Guarded([&] { agreement->MakeOffer({static_cast<Has>(has), error}); });
}

// Sets `go` to whether the loop goes on.
char* lockstep_agreement_decide(Agreement* agreement, int32_t* go) {
  return Guarded([&] { *go = ValueOrThrow(agreement->Decide()) == Decision::kGo ? 1 : 0; });
}

lockstep::python::StoreGuard* lockstep_guard_make(SocketCollective* collective,
                                                  lockstep::python::StoreNotes::WriteFunction write,
                                                  lockstep::python::StoreNotes::ReadFunction read,
                                                  double timeout_s, const int32_t* ranks) {
  using lockstep::python::StoreGuard;
  auto guard = std::make_unique<StoreGuard>(StoreGuard{{write, read}, {nullptr, nullptr, 0, {-1}}});
  guard->guard = {collective, &guard->notes, timeout_s,
                  std::vector<int>(ranks, ranks + collective->size())};
  return guard.release();
}

void lockstep_guard_delete(lockstep::python::StoreGuard* guard) { delete guard; }

char* lockstep_guard_check(lockstep::python::StoreGuard* guard, const char* label,
                           const char* fingerprint, const char* place) {
  return Guarded([&] { Check(guard->guard.Check(label, fingerprint, place)); });
}

// Makes a shard from a JSON object of ShardOptions' fields. Writes length, padded and dropped.
char* lockstep_shard_make(const char* options, Shard** shard, int64_t counts[3]) {
  return Guarded([&] {
    *shard = new Shard(
        ValueOrThrow(Shard::Make(lockstep::python::ReadShard(nlohmann::json::parse(options)))));
    counts[0] = (*shard)->length();
    counts[1] = (*shard)->padded();
    counts[2] = (*shard)->dropped();
  });
}

void lockstep_shard_delete(Shard* shard) { delete shard; }

// Writes the next indices, at most `size`. Returns their number.
int64_t lockstep_shard_next(Shard* shard, int64_t size, int64_t* indices) {
  int64_t count = 0;
  while (count < size) {
    const std::optional<int64_t> index = shard->Next();
    if (!index.has_value()) break;
    indices[count++] = *index;
  }
  return count;
}

int64_t lockstep_shard_start_after(const Shard* shard, int64_t taken) {
  return shard->StartAfter(taken);
}

Packer* lockstep_packer_make(int64_t seq_len, int32_t split, int32_t drop_last) {
  return std::make_unique<Packer>(
             lockstep::sharding::PackOptions{seq_len, split != 0, drop_last != 0})
      .release();
}

void lockstep_packer_delete(Packer* packer) { delete packer; }

// Adds a sample, or ends the stream where `tokens` is negative. Sets `chunks` to a JSON list of the
// complete chunks: lists of [sample, begin, end]. The caller frees it. It is null for no chunk.
// Writes the number of tokens that have been dropped.
char* lockstep_packer_add(Packer* packer, int64_t tokens, char** chunks, int64_t* dropped) {
  return Guarded([&] {
    nlohmann::json list = nlohmann::json::array();
    if (tokens >= 0) {
      for (const auto& chunk : packer->Add(tokens))
        list.push_back(lockstep::python::WriteChunk(chunk));
    } else if (const auto last = packer->Finish(); last.has_value()) {
      list.push_back(lockstep::python::WriteChunk(*last));
    }
    *chunks = list.empty() ? nullptr : lockstep::python::Give(list.dump());
    *dropped = packer->dropped_tokens();
  });
}

}  // extern "C"
