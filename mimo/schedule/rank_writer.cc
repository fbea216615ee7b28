#include "mimo/schedule/rank_writer.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "mimo/bridge/routes.h"
#include "mimo/schedule/schedule.h"
#include "mimo/topology/topology.h"

namespace lockstep::mimo {
namespace {

// Writes the operations of one rank, in order.
class RankWriter {
 public:
  RankWriter(const Step& step, int64_t rank, std::vector<Op>* ops)
      : step_(step), rank_(rank), ops_(ops) {
    for (int32_t module : step.topology->modules_of(rank)) {
      positions_.push_back({module, *step.topology->coordinates(rank, module)});
    }
  }

  void WriteSequential() {
    for (int64_t m = 0; m < step_.num_micro_batches; ++m) {
      WriteForward(m);
      WriteBackward(m);
    }
    WriteEndOfStep();
  }

  void WriteAllForwardsFirst() {
    is_detached_ = true;
    for (int64_t m = 0; m < step_.num_micro_batches; ++m) WriteForward(m);
    for (int64_t m = 0; m < step_.num_micro_batches; ++m) WriteBackward(m);
    WriteEndOfStep();
    WaitForGradients();
  }

  // The rank has one module. Its bridges run as in kAllForwardsFirst. Between stages, a batch holds
  // the messages of both directions.
  void Write1F1B() {
    is_detached_ = true;
    const Position& position = positions_[0];
    const int64_t count = step_.num_micro_batches;
    const int64_t below = step_.stages_below[static_cast<size_t>(position.module)] +
                          ModuleAt(position.module).pp - 1 - position.at.pp;
    const int64_t warm_up = std::min(below, count);
    for (int64_t m = 0; m < warm_up; ++m) {
      ReceiveForward(position, m);
      Compute(position, m, Payload::kTensorForward);
      SendForward(position, m);
    }
    if (warm_up < count) ReceiveForward(position, warm_up);
    for (int64_t m = 0; m < count; ++m) {
      const int64_t next = m + warm_up;
      if (next < count) {
        Compute(position, next, Payload::kTensorForward);
        SendForward(position, next);
      }
      ReceiveBackward(position, m, /*joins=*/next < count);
      Compute(position, m, Payload::kTensorBackward);
      SendBackward(position, m);
      if (next + 1 < count) ReceiveForward(position, next + 1, /*joins=*/true);
    }
    WriteEndOfStep();
    WaitForGradients();
  }

 private:
  // The rank's place in one of its modules.
  struct Position {
    int module;
    Coordinates at;
  };

  const Module& ModuleAt(int module) const {
    return step_.topology->modules()[static_cast<size_t>(module)];
  }
  const Position* PositionIn(int module) const {
    for (const Position& position : positions_) {
      if (position.module == module) return &position;
    }
    return nullptr;
  }
  bool IsFirst(const Position& position) const { return position.at.pp == 0; }
  bool IsLast(const Position& position) const {
    return position.at.pp == ModuleAt(position.module).pp - 1;
  }
  int64_t PlaceOf(const Position& position) const {
    const Module& grid = ModuleAt(position.module);
    return (position.at.dp * grid.cp + position.at.cp) * grid.tp + position.at.tp;
  }
  // Its place at the last stage of `from`, or the first of `to`; -1 if it has none there.
  int64_t FromPlace(int edge) const {
    const Position* position = PositionIn(step_.topology->from(edge));
    return position != nullptr && IsLast(*position) ? PlaceOf(*position) : -1;
  }
  int64_t ToPlace(int edge) const {
    const Position* position = PositionIn(step_.topology->to(edge));
    return position != nullptr && IsFirst(*position) ? PlaceOf(*position) : -1;
  }
  const Route& Forward(int edge, int64_t m) const {
    return step_.forward[step_.RouteIndex(edge, m)];
  }
  const Route& Backward(int edge, int64_t m) const {
    return step_.backward[step_.RouteIndex(edge, m)];
  }

  // The next operation begins a batch; those added after it belong to it.
  void StartBatch() { joins_ = false; }
  void Add(OpKind kind, Payload payload, int64_t partner, int64_t subject, int64_t rows) {
    ops_->push_back({.kind = kind,
                     .payload = payload,
                     .with_previous = joins_,
                     .partner = static_cast<int32_t>(partner),
                     .subject = static_cast<int32_t>(subject),
                     .micro_batch = micro_batch_,
                     .rows = rows});
    joins_ = true;
  }
  void AddCollective(Payload payload, int32_t group, int64_t subject, int64_t rows) {
    StartBatch();
    Add(OpKind::kCollective, payload, group, subject, rows);
    StartBatch();
  }
  void AddSends(const Route& route, int64_t place, Payload payload, int edge) {
    for (const Transfer& transfer : TransfersFrom(route, place)) {
      const int32_t peer = route.to.ranks[static_cast<size_t>(transfer.to_place)];
      if (peer == rank_) continue;
      Add(OpKind::kSend, payload, peer, edge, transfer.rows.size());
      ops_->back().detached = is_detached_;
    }
  }
  void AddReceives(const Route& route, int64_t place, Payload payload, int edge) {
    for (const Transfer& transfer : TransfersTo(route, place)) {
      const int32_t peer = route.from.ranks[static_cast<size_t>(transfer.from_place)];
      if (peer != rank_) Add(OpKind::kReceive, payload, peer, edge, transfer.rows.size());
    }
  }
  // The lanes of the receiving side of a route.
  void AddGather(const Route& route, int64_t place, Payload payload, int edge, int module) {
    if (place < 0 || route.to.lanes == 1) return;
    const int64_t rows = route.to.shard(place / route.to.lanes).size();
    if (rows > 0) AddCollective(payload, GroupsAt(module).tp_cp[Rank()], edge, rows);
  }
  void AddContextSum(int edge, int64_t m) {
    const int64_t place = ToPlace(edge);
    const int module = step_.topology->to(edge);
    if (place < 0 || ModuleAt(module).cp == 1) return;
    const Side& side = Forward(edge, m).to;
    const int64_t rows = side.shard(place / side.lanes).size();
    if (rows > 0) AddCollective(Payload::kContextSum, GroupsAt(module).cp[Rank()], edge, rows);
  }
  // Adds nothing where the module has no such stage.
  void AddToStage(OpKind kind, const Position& position, int32_t stage, Payload payload) {
    if (stage < 0 || stage == ModuleAt(position.module).pp) return;
    Coordinates at = position.at;
    at.pp = stage;
    Add(kind, payload, step_.topology->rank(position.module, at), position.module, 0);
  }
  const GroupsOfModule& GroupsAt(int module) const {
    return step_.groups[static_cast<size_t>(module)];
  }
  size_t Rank() const { return static_cast<size_t>(rank_); }

  void Compute(const Position& position, int64_t m, Payload payload) {
    micro_batch_ = static_cast<int32_t>(m);
    const Module& grid = ModuleAt(position.module);
    if (grid.tp * grid.cp == 1) return;
    AddCollective(payload, GroupsAt(position.module).tp_cp[Rank()], position.module, 0);
  }

  // kSequential and kAllForwardsFirst.
  void WriteForward(int64_t m) {
    micro_batch_ = static_cast<int32_t>(m);
    for (int module : step_.topology->forward_order()) {
      for (int e = 0; e < static_cast<int>(step_.num_edges()); ++e) {
        if (step_.topology->to(e) == module) BridgeForward(e);
      }
      if (const Position* position = PositionIn(module)) StageForward(*position);
    }
  }
  void WriteBackward(int64_t m) {
    micro_batch_ = static_cast<int32_t>(m);
    const std::vector<int>& order = step_.topology->forward_order();
    for (auto module = order.rbegin(); module != order.rend(); ++module) {
      if (const Position* position = PositionIn(*module)) StageBackward(*position);
      for (int e = static_cast<int>(step_.num_edges()) - 1; e >= 0; --e) {
        if (step_.topology->to(e) == *module) BridgeBackward(e);
      }
    }
  }
  // Waits for the operations that a bridge has detached.
  void AddWait(Payload payload, int edge, int64_t m) {
    const int32_t now = micro_batch_;
    micro_batch_ = static_cast<int32_t>(m);
    Add(OpKind::kWait, payload, 0, edge, 0);
    micro_batch_ = now;
  }
  void BridgeForward(int edge) {
    const Route& route = Forward(edge, micro_batch_);
    StartBatch();
    if (is_detached_ && FromPlace(edge) >= 0 && micro_batch_ >= kCallsAhead)
      AddWait(Payload::kBridge, edge, micro_batch_ - kCallsAhead);
    StartBatch();
    AddSends(route, FromPlace(edge), Payload::kBridge, edge);
    AddReceives(route, ToPlace(edge), Payload::kBridge, edge);
    AddGather(route, ToPlace(edge), Payload::kBridgeGather, edge, step_.topology->to(edge));
  }
  void BridgeBackward(int edge) {
    const Route& route = Backward(edge, micro_batch_);
    AddContextSum(edge, micro_batch_);
    StartBatch();
    AddSends(route, ToPlace(edge), Payload::kBridgeGradient, edge);
    AddReceives(route, FromPlace(edge), Payload::kBridgeGradient, edge);
    if (is_detached_ && FromPlace(edge) >= 0) AddWait(Payload::kBridge, edge, micro_batch_);
    AddGather(route, FromPlace(edge), Payload::kGradientGather, edge, step_.topology->from(edge));
  }
  void StageForward(const Position& position) {
    StartBatch();
    AddToStage(OpKind::kReceive, position, position.at.pp - 1, Payload::kStage);
    Compute(position, micro_batch_, Payload::kTensorForward);
    StartBatch();
    AddToStage(OpKind::kSend, position, position.at.pp + 1, Payload::kStage);
  }
  void StageBackward(const Position& position) {
    StartBatch();
    AddToStage(OpKind::kReceive, position, position.at.pp + 1, Payload::kStageGradient);
    Compute(position, micro_batch_, Payload::kTensorBackward);
    StartBatch();
    AddToStage(OpKind::kSend, position, position.at.pp - 1, Payload::kStageGradient);
  }

  // k1F1B: one direction of a micro-batch, over the module's edges or to the neighbouring stage.
  // `joins`: in the batch of the message before it, to the same stage.
  void ReceiveForward(const Position& position, int64_t m, bool joins = false) {
    micro_batch_ = static_cast<int32_t>(m);
    joins_ = joins;
    AddToStage(OpKind::kReceive, position, position.at.pp - 1, Payload::kStage);
    ForEdges(position, /*incoming=*/true, [&](int e) { BridgeForward(e); });
  }
  void SendForward(const Position& position, int64_t m) {
    micro_batch_ = static_cast<int32_t>(m);
    ForEdges(position, /*incoming=*/false, [&](int e) { BridgeForward(e); });
    StartBatch();
    AddToStage(OpKind::kSend, position, position.at.pp + 1, Payload::kStage);
  }
  void ReceiveBackward(const Position& position, int64_t m, bool joins) {
    micro_batch_ = static_cast<int32_t>(m);
    joins_ = joins;
    AddToStage(OpKind::kReceive, position, position.at.pp + 1, Payload::kStageGradient);
    ForEdges(position, /*incoming=*/false, [&](int e) { BridgeBackward(e); });
  }
  void SendBackward(const Position& position, int64_t m) {
    micro_batch_ = static_cast<int32_t>(m);
    ForEdges(position, /*incoming=*/true, [&](int e) { BridgeBackward(e); });
    StartBatch();
    AddToStage(OpKind::kSend, position, position.at.pp - 1, Payload::kStageGradient);
  }
  template <typename Function>
  void ForEdges(const Position& position, bool incoming, Function function) {
    const Topology& topology = *step_.topology;
    for (int e = 0; e < static_cast<int>(step_.num_edges()); ++e) {
      if ((incoming ? topology.to(e) : topology.from(e)) == position.module) function(e);
    }
  }

  // The gradients that bridges have sent.
  void WaitForGradients() {
    for (int64_t m = 0; m < step_.num_micro_batches; ++m) {
      for (int e = 0; e < static_cast<int>(step_.num_edges()); ++e) {
        if (ToPlace(e) >= 0) AddWait(Payload::kBridgeGradient, e, m);
      }
    }
  }

  void WriteEndOfStep() {
    micro_batch_ = static_cast<int32_t>(step_.num_micro_batches - 1);
    const bool has_peers = step_.topology->world_size() > 1;
    if (has_peers) AddCollective(Payload::kCountTokens, step_.world_group, 0, 0);
    for (const Position& position : positions_) {
      const Module& grid = ModuleAt(position.module);
      const auto reduce = [&](Payload payload, const std::vector<int32_t>& group_of) {
        AddCollective(payload, group_of[Rank()], position.module, 0);
      };
      if (grid.dp * grid.cp > 1) reduce(Payload::kReduceGradients, GroupsAt(position.module).dp_cp);
      if (grid.pp > 1 && (IsFirst(position) || IsLast(position)))
        reduce(Payload::kReduceShared, GroupsAt(position.module).embedding);
    }
    if (has_peers) AddCollective(Payload::kGlobalNorm, step_.world_group, 0, 0);
  }

  const Step& step_;
  const int64_t rank_;
  std::vector<Op>* const ops_;
  std::vector<Position> positions_;
  int32_t micro_batch_ = 0;
  bool joins_ = false;
  bool is_detached_ = false;  // whether bridges go on without waiting for what they send
};

}  // namespace

void WriteRank(const Step& step, Order order, int64_t rank, std::vector<Op>* ops) {
  RankWriter writer(step, rank, ops);
  if (order == Order::kSequential) {
    writer.WriteSequential();
  } else if (order == Order::kAllForwardsFirst) {
    writer.WriteAllForwardsFirst();
  } else {
    writer.Write1F1B();
  }
}

}  // namespace lockstep::mimo
