#include "batching/prepare.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "ATen/core/grad_mode.h"
#include "absl/status/statusor.h"
#include "base/hash.h"
#include "batching/item.h"
#include "batching/pack.h"
#include "c10/util/Exception.h"

namespace lockstep::batching {
namespace {

void CheckOptions(const PrepareOptions& options) {
  TORCH_CHECK_VALUE(options.seq_len >= 1 && options.seq_len <= kMaxSeqLen,
                    "batching: seq_len must be from 1 to ", kMaxSeqLen, ", not ", options.seq_len);
  TORCH_CHECK_VALUE(options.ranks >= 1 && options.ranks <= kMaxRanks,
                    "batching: ranks must be from 1 to ", kMaxRanks, ", not ", options.ranks);
  TORCH_CHECK_VALUE(options.only_rank >= -1 && options.only_rank < options.ranks, "batching: rank ",
                    options.only_rank, " is not one of ", options.ranks, " ranks (0 to ",
                    options.ranks - 1, ")");
  TORCH_CHECK_VALUE(
      options.pad_to_multiple_of >= 1 && options.seq_len % options.pad_to_multiple_of == 0,
      "batching: pad_to_multiple_of (", options.pad_to_multiple_of, ") must divide seq_len (",
      options.seq_len, ")");
}

// --- Kinds ---------------------------------------------------------------------------------------

// All samples of a kind hold the same tensors: else one rank's micro-batch would lack what runs a
// module on another.
void CheckSameTensors(const std::vector<Item>& items, int64_t first_number) {
  std::map<std::string, const Item*> first;
  for (const Item& item : items) {
    const Item& other = *first.emplace(item.kind, &item).first->second;
    for (const auto& [one, two] : {std::pair(&item, &other), std::pair(&other, &item)}) {
      for (const auto& [name, rows] : one->kept.rows) {
        TORCH_CHECK_VALUE(two->kept.rows.count(name) > 0, "batching: sample ",
                          first_number + one->index, " has ", name, " and sample ",
                          first_number + two->index, " has none, but both are of kind \"",
                          item.kind, "\": a kind's samples hold the same tensors, or ranks would ",
                          "run different modules; name another kind");
      }
    }
  }
}

// Micro-batches concatenate the tensors of one kind: dtype and all dimensions but the first must
// agree.
void CheckCompatible(const std::vector<Item>& items, int64_t first_number) {
  std::map<std::string, std::map<std::string, const Item*>> first;  // by kind, by field
  for (const Item& item : items) {
    auto& fields = first[item.kind];
    for (const auto& [name, rows] : item.kept.rows) {
      const Item& with = *fields.emplace(name, &item).first->second;
      const TensorOutline& tensor = item.outline->tensors.at(name);
      const TensorOutline& other = with.outline->tensors.at(name);
      const at::IntArrayRef shape = tensor.shape, other_shape = other.shape;
      TORCH_CHECK_VALUE(
          tensor.dtype == other.dtype && shape.slice(1) == other_shape.slice(1) &&
              tensor.device == other.device,
          "batching: ", name, " is ", tensor.dtype, " ", shape, " on ", tensor.device,
          " in sample ", first_number + item.index, " and ", other.dtype, " ", other_shape, " on ",
          other.device, " in sample ", first_number + with.index,
          ": tensors of one kind are concatenated on dimension 0, and must agree in all else");
    }
  }
}

// --- Planning ------------------------------------------------------------------------------------

double CostOfExtent(const PrepareOptions& options, const Item& item, const Extent& extent) {
  double cost = options.sequence_cost(extent.tokens);
  for (const int64_t patches : extent.patches) cost += CostOf(options.image_cost, patches);
  TORCH_CHECK_VALUE(cost >= 0 && std::isfinite(cost), "batching: sample ",
                    options.first_number + item.index, ", of ", extent.tokens, " tokens, costs ",
                    cost, "; a cost is a finite number from 0 on");
  return cost;
}

// Returns the plan, and the names of its kinds.
std::pair<Plan, std::vector<std::string>> PlanItems(const std::vector<Item>& items,
                                                    const PrepareOptions& options) {
  std::map<std::string, int> kinds;
  for (const Item& item : items) kinds[item.kind] = 0;
  std::vector<std::string> names;
  for (auto& [name, kind] : kinds) {  // steps come in the order of the names
    kind = static_cast<int>(names.size());
    names.push_back(name);
  }
  std::vector<Sample> samples;
  for (const Item& item : items) {
    Sample sample;
    sample.tokens = item.kept.tokens;
    sample.cost = CostOfExtent(options, item, item.kept);
    sample.kind = kinds.at(item.kind);
    sample.least_tokens = item.least.tokens;
    sample.least_cost = CostOfExtent(options, item, item.least);
    sample.may_split = item.kept.rows.empty();
    samples.push_back(sample);
  }
  PlanOptions plan_options;
  // Micro-batches are padded afterwards, and seq_len is a multiple: they still fit.
  plan_options.seq_len = options.seq_len;
  plan_options.ranks = options.ranks;
  plan_options.balance = options.balance;
  plan_options.worth_a_step = options.worth_a_step;
  plan_options.max_group = options.max_group;
  plan_options.split_overhead = options.split_overhead;
  if (options.mix_kinds) {
    for (const auto& [rider, hosts] : HostsOf(items)) {
      for (const std::string& host : hosts)
        plan_options.hosts[kinds.at(rider)].insert(kinds.at(host));
    }
  }
  if (options.micro_batch_cost) {
    plan_options.micro_batch_cost = [&](absl::Span<const int64_t> members) {
      std::vector<int64_t> seq_lens;
      for (const int64_t i : members) seq_lens.push_back(samples[static_cast<size_t>(i)].tokens);
      return options.micro_batch_cost(seq_lens);
    };
  }
  absl::StatusOr<Plan> plan = MakePlan(samples, plan_options);
  TORCH_CHECK_VALUE(plan.ok(), std::string(plan.status().message()));
  return {*std::move(plan), std::move(names)};
}

// --- The result ----------------------------------------------------------------------------------

// Counts the tokens of a sample whose first `kept` tokens are packed.
void CountTokens(const Outline& outline, int64_t kept, Report& report) {
  int64_t with_loss = 0, all_with_loss = 0;
  for (const auto& [begin, end] : outline.loss) {
    all_with_loss += end - begin;
    with_loss += std::max<int64_t>(0, std::min(end, kept) - begin);
  }
  report.tokens += kept;
  report.loss_tokens += with_loss;
  report.truncated_tokens += outline.tokens - kept;
  report.truncated_loss_tokens += all_with_loss - with_loss;
  report.samples_without_loss += with_loss == 0 ? 1 : 0;
  if (kept == 0) {
    ++report.dropped_samples;
  } else if (kept < outline.tokens) {
    ++report.truncated_samples;
  }
}

// Returns the items of the samples that keep at least one token after the cut.
std::vector<Item> MakeItems(const std::vector<Outline>& index, const PrepareOptions& options,
                            Report& report) {
  std::vector<Item> items;
  for (size_t i = 0; i < index.size(); ++i) {
    Item item = MakeItem(index[i], options.first_number + static_cast<int64_t>(i), options);
    item.index = static_cast<int64_t>(i);
    if (item.kept.tokens == 0) {
      CountTokens(index[i], 0, report);
    } else {
      items.push_back(std::move(item));
    }
  }
  NameKinds(items);
  return items;
}

// Calls fn for the item of each sample of a micro-batch. Of the ranks that share a sample, it does
// so for the first alone.
void ForEachOwnItem(const Plan& plan, const MicroBatch& planned, int rank,
                    const std::vector<Item>& items, const std::function<void(const Item&)>& fn) {
  for (const Share& share : plan.shares_of(planned)) {
    if (share.first_rank == rank) fn(items[static_cast<size_t>(share.sample)]);
  }
  for (const int64_t i : plan.samples_of(planned)) fn(items[static_cast<size_t>(i)]);
}

// Whether a micro-step is left for later: it needs padding, and all its samples may wait.
bool IsHeld(const Plan& plan, int64_t step, const std::vector<Item>& items) {
  bool needs_padding = false, all_may_wait = true;
  for (int rank = 0; rank < plan.ranks; ++rank) {
    const MicroBatch& planned = plan.at(rank, step);
    needs_padding |= planned.padding;
    if (planned.padding) continue;
    ForEachOwnItem(plan, planned, rank, items,
                   [&](const Item& item) { all_may_wait &= item.outline->may_wait; });
  }
  return needs_padding && all_may_wait;
}

void AddMicroBatch(const Plan& plan, const MicroBatch& planned, const std::string& kind,
                   const std::vector<Item>& items, base::Hash& fingerprint) {
  const auto samples = plan.samples_of(planned);
  fingerprint.Add(kind.size());
  fingerprint.AddText(kind);
  fingerprint.Add(planned.padding ? 1 : 0);
  fingerprint.Add(samples.size());
  for (const int64_t i : samples) {
    fingerprint.Add(static_cast<uint64_t>(items[static_cast<size_t>(i)].index));
    fingerprint.Add(static_cast<uint64_t>(items[static_cast<size_t>(i)].kept.tokens));
  }
  for (const Share& share : plan.shares_of(planned)) {
    const Item& item = items[static_cast<size_t>(share.sample)];
    for (const int64_t value :
         {item.index, item.kept.tokens, int64_t{share.first_rank}, int64_t{share.ranks}})
      fingerprint.Add(static_cast<uint64_t>(value));
  }
}

int LargestGroup(const Plan& plan, int64_t step) {
  int largest = 1;
  for (int rank = 0; rank < plan.ranks; ++rank) {
    for (const Share& share : plan.shares_of(plan.at(rank, step)))
      largest = std::max(largest, share.ranks);
  }
  return largest;
}

// Returns the samples of a micro-batch, by their places in the index. They live until the next
// call.
using SamplesOf =
    std::function<std::vector<const TensorSample*>(const std::vector<int64_t>& indices)>;

// One rank's micro-batch of a step that takes place.
void AppendMicroBatch(const Plan& plan, const MicroBatch& planned, const std::string& kind,
                      int rank, int largest_group, const std::vector<Item>& items,
                      const PrepareOptions& options, const Packer& packer,
                      const SamplesOf& samples_of, Prepared& prepared) {
  const bool shorten = planned.padding && options.balance == Balance::kLockstep;
  std::vector<const Item*> members;
  std::vector<int64_t> indices;
  std::vector<SampleShare> shares;
  int64_t tokens = 0;
  for (const Share& share : plan.shares_of(planned)) {
    const Item& item = items[static_cast<size_t>(share.sample)];
    const int place = rank - share.first_rank;
    members.push_back(&item);
    indices.push_back(item.index);
    shares.push_back({item.index, item.kept.tokens, share.first_rank, share.ranks, place});
    for (const Piece& piece : PiecesOf(item.kept.tokens, share.ranks, place))
      tokens += piece.end - piece.begin;
  }
  for (const int64_t i : plan.samples_of(planned)) {
    const Item& item = items[static_cast<size_t>(i)];
    members.push_back(&item);
    indices.push_back(item.index);
    tokens += shorten ? item.least.tokens : item.kept.tokens;
  }
  if (!planned.padding) {
    ForEachOwnItem(plan, planned, rank, items, [&](const Item& item) {
      CountTokens(*item.outline, item.kept.tokens, prepared.report);
    });
  }
  const int64_t multiple = options.pad_to_multiple_of;
  const int64_t length = (tokens + multiple - 1) / multiple * multiple;
  prepared.report.padding_tokens += planned.padding ? length : length - tokens;
  prepared.report.padding_micro_batches += planned.padding ? 1 : 0;
  if (options.only_rank >= 0 && rank != options.only_rank) return;
  TensorMicroBatch batch = packer.Pack(kind, members, samples_of(indices), std::move(shares),
                                       largest_group, planned.padding, shorten);
  batch.cost = planned.cost;
  if (!planned.padding) batch.samples = std::move(indices);
  prepared.batches[static_cast<size_t>(rank)].push_back(std::move(batch));
}

// Plans from the index, and packs what samples_of returns.
Prepared PlanAndPack(const std::vector<Outline>& index, const SamplesOf& samples_of,
                     const PrepareOptions& options) {
  const at::NoGradGuard no_grad;  // data: whatever of it requires a gradient
  Prepared prepared;
  Report& report = prepared.report;
  const std::vector<Item> items = MakeItems(index, options, report);
  CheckSameTensors(items, options.first_number);
  CheckCompatible(items, options.first_number);
  const auto [plan, kinds] = PlanItems(items, options);
  const Packer packer(options, index);
  prepared.batches.resize(static_cast<size_t>(options.ranks));
  base::Hash fingerprint;
  for (int64_t step = 0; step < plan.micro_steps; ++step) {
    const bool is_held = IsHeld(plan, step, items);
    const int largest_group = LargestGroup(plan, step);
    double most_expensive = 0;
    for (int rank = 0; rank < options.ranks; ++rank) {
      const MicroBatch& planned = plan.at(rank, step);
      if (is_held) {
        if (planned.padding) continue;
        ForEachOwnItem(plan, planned, rank, items,
                       [&](const Item& item) { prepared.held.push_back(item.index); });
        continue;
      }
      const std::string& kind = kinds[static_cast<size_t>(planned.kind)];
      AppendMicroBatch(plan, planned, kind, rank, largest_group, items, options, packer, samples_of,
                       prepared);
      AddMicroBatch(plan, planned, kind, items, fingerprint);
      most_expensive = std::max(most_expensive, planned.cost);
      if (!planned.padding) report.ideal += (planned.cost - planned.overhead) / options.ranks;
      for (const Share& share : plan.shares_of(planned))
        report.split_samples += share.first_rank == rank ? 1 : 0;
    }
    if (is_held) continue;
    ++report.micro_steps;
    report.makespan += most_expensive;
  }
  std::sort(prepared.held.begin(), prepared.held.end());
  report.fingerprint = fingerprint.value();
  report.lower_bound = prepared.held.empty() ? plan.lower_bound : 0;
  return prepared;
}

}  // namespace

Prepared Prepare(const std::vector<TensorSample>& samples, const PrepareOptions& options) {
  CheckOptions(options);
  std::vector<Outline> index;
  for (size_t i = 0; i < samples.size(); ++i)
    index.push_back(Describe(samples[i], options.first_number + static_cast<int64_t>(i), options));
  const auto samples_of = [&](const std::vector<int64_t>& indices) {
    std::vector<const TensorSample*> found;
    for (const int64_t i : indices) found.push_back(&samples[static_cast<size_t>(i)]);
    return found;
  };
  return PlanAndPack(index, samples_of, options);
}

Prepared PrepareFromIndex(const std::vector<Outline>& index, const LoadSample& load,
                          const PrepareOptions& options) {
  CheckOptions(options);
  for (size_t i = 0; i < index.size(); ++i)
    CheckOutline(index[i], options.first_number + static_cast<int64_t>(i), options);
  std::vector<TensorSample> loaded;
  const auto samples_of = [&](const std::vector<int64_t>& indices) {
    loaded.clear();
    for (const int64_t i : indices) {
      loaded.push_back(load(i));
      const int64_t number = options.first_number + i;
      const std::string difference =
          Difference(index[static_cast<size_t>(i)], Describe(loaded.back(), number, options));
      TORCH_CHECK_VALUE(difference.empty(), "batching: sample ", number,
                        " is not the one that the index describes; ", difference,
                        " (in the index and in the sample); make the index again");
    }
    std::vector<const TensorSample*> found;
    for (const TensorSample& sample : loaded) found.push_back(&sample);
    return found;
  };
  return PlanAndPack(index, samples_of, options);
}

std::future<Prepared> PrepareInBackground(std::vector<TensorSample> samples,
                                          PrepareOptions options) {
  return std::async(std::launch::async,
                    [samples = std::move(samples), options = std::move(options)] {
                      return Prepare(samples, options);
                    });
}

}  // namespace lockstep::batching
