#include "batching/prepare.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "ATen/ops/arange.h"
#include "ATen/ops/cat.h"
#include "ATen/ops/empty.h"
#include "absl/status/statusor.h"
#include "batching/truncate.h"
#include "c10/util/Exception.h"

namespace lockstep::batching {
namespace {

// Tensors that are cut together: rows of patches, and a grid with a row for each image.
struct ImageFields {
  const char* pixels;
  const char* grid;
  int64_t type;  // in token_types
};
constexpr ImageFields kImageFields[] = {{"pixel_values", "image_grid_thw", 1},
                                        {"pixel_values_videos", "video_grid_thw", 2}};

// How much of a sample is packed: its first tokens, and the first rows of each of its tensors.
struct Extent {
  int64_t tokens = 0;
  std::map<std::string, int64_t> rows;
};

struct Item {
  const TensorSample* sample = nullptr;
  std::string kind;
  Extent kept;   // within seq_len
  Extent least;  // the shortest copy that still runs every module
  std::vector<int64_t> patches;  // of each image kept
};

template <typename T>
T OkOrThrow(const absl::StatusOr<T>& value, int64_t sample) {
  TORCH_CHECK_VALUE(value.ok(), "batching: sample ", sample, ": ", std::string(value.status().message()));
  return *value;
}

std::string KindOf(const TensorSample& sample) {
  if (!sample.kind.empty()) return sample.kind;
  return sample.tensors.count("pixel_values") > 0 ? "image" : "text";
}

// --- Checking ---------------------------------------------------------------------------------------

void CheckPerToken(const at::Tensor& tensor, const std::string& name, int64_t sample, int64_t tokens) {
  TORCH_CHECK_VALUE(tensor.dim() == 1 && tensor.size(0) == tokens, "batching: sample ", sample, ": ", name, " has shape ",
                    tensor.sizes(), ", but input_ids has ", tokens, " tokens");
  TORCH_CHECK_VALUE(tensor.is_cpu(), "batching: sample ", sample, ": ", name, " must be on the CPU, not on ", tensor.device());
}

void CheckSample(const TensorSample& sample, int64_t index, const PrepareOptions& options) {
  TORCH_CHECK_VALUE(sample.input_ids.defined() && sample.input_ids.dim() == 1, "batching: sample ", index,
                    ": input_ids must be a tensor of one dimension");
  const int64_t tokens = sample.input_ids.size(0);
  TORCH_CHECK_VALUE(tokens > 0, "batching: sample ", index, " has no tokens");
  TORCH_CHECK_VALUE(at::isIntegralType(sample.input_ids.scalar_type(), /*includeBool=*/false), "batching: sample ", index,
                    ": input_ids must be of an integer dtype, not ", sample.input_ids.scalar_type());
  TORCH_CHECK_VALUE(sample.loss_mask.defined(), "batching: sample ", index, " has no loss_mask");
  TORCH_CHECK_VALUE(at::isIntegralType(sample.loss_mask.scalar_type(), /*includeBool=*/true), "batching: sample ", index,
                    ": loss_mask must be of dtype bool or an integer one, not ", sample.loss_mask.scalar_type());
  CheckPerToken(sample.input_ids, "input_ids", index, tokens);
  CheckPerToken(sample.loss_mask, "loss_mask", index, tokens);
  if (sample.position_ids.defined()) CheckPerToken(sample.position_ids, "position_ids", index, tokens);
  for (const auto& [name, stream] : sample.streams) {
    TORCH_CHECK_VALUE(options.streams.count(name) > 0 || name == options.token_types, "batching: sample ", index, ": ", name,
                      " is not declared in streams, so that nothing says what padding gets");
    CheckPerToken(stream, name, index, tokens);
  }
  for (const auto& [name, tensor] : sample.tensors) {
    TORCH_CHECK_VALUE(tensor.dim() >= 1, "batching: sample ", index, ": ", name, " has no dimension 0 to concatenate on");
  }
}

void CheckOptions(const PrepareOptions& options) {
  TORCH_CHECK_VALUE(options.seq_len >= 1, "batching: seq_len must be at least 1, not ", options.seq_len);
  TORCH_CHECK_VALUE(options.ranks >= 1, "batching: ranks must be at least 1, not ", options.ranks);
  TORCH_CHECK_VALUE(options.only_rank < options.ranks, "batching: rank ", options.only_rank, " is not one of ", options.ranks, " ranks");
  TORCH_CHECK_VALUE(options.pad_to_multiple_of >= 1 && options.seq_len % options.pad_to_multiple_of == 0,
                    "batching: pad_to_multiple_of (", options.pad_to_multiple_of, ") must divide seq_len (", options.seq_len, ")");
}

// --- Cutting ----------------------------------------------------------------------------------------

std::vector<int64_t> Patches(const at::Tensor& grid, int64_t sample, const char* name) {
  TORCH_CHECK_VALUE(grid.dim() == 2 && at::isIntegralType(grid.scalar_type(), /*includeBool=*/false), "batching: sample ", sample,
                    ": ", name, " must hold integers in a row for each image, not ", grid.scalar_type(), " of shape ", grid.sizes());
  const at::Tensor counts = grid.to(at::kLong).prod(1).contiguous();
  return std::vector<int64_t>(counts.const_data_ptr<int64_t>(), counts.const_data_ptr<int64_t>() + counts.numel());
}

// Cuts one sample; of one that begins with an image that does not fit, no token is left.
class Cutter {
 public:
  Cutter(const TensorSample& sample, int64_t index, const PrepareOptions& options)
      : sample_(sample), index_(index), options_(options) {}

  Item Cut() {
    Item item;
    item.sample = &sample_;
    const int64_t tokens = sample_.input_ids.size(0);
    item.kept.tokens = std::min(tokens, options_.seq_len);
    for (const auto& [name, tensor] : sample_.tensors) item.kept.rows[name] = tensor.size(0);
    for (const ImageFields& fields : kImageFields) CutImages(fields, item);
    if (item.kept.tokens < tokens) CheckAllCut();
    item.kind = KindOf(sample_);
    if (LostAllImages(item)) {
      // Without images the vision tower has nothing to run on: this is text now.
      TORCH_CHECK_VALUE(sample_.kind.empty() || item.kept.tokens == 0, "batching: sample ", index_, " of kind \"", sample_.kind,
                        "\" loses all its images when it is cut to seq_len = ", options_.seq_len, "; shorten it first");
      item.kind = "text";
      item.kept.rows.clear();
    }
    item.least = item.kept;
    ShortenCopy(item);
    return item;
  }

 private:
  const at::Tensor* Find(const std::map<std::string, at::Tensor>& tensors, const std::string& name) const {
    const auto it = tensors.find(name);
    return it == tensors.end() ? nullptr : &it->second;
  }

  void CutImages(const ImageFields& fields, Item& item) {
    const at::Tensor* grid = Find(sample_.tensors, fields.grid);
    if (grid == nullptr) return;
    const std::vector<int64_t> patches = Patches(*grid, index_, fields.grid);
    const at::Tensor* types = Find(sample_.streams, options_.token_types);
    TORCH_CHECK_VALUE(types != nullptr, "batching: sample ", index_, " has ", fields.grid, " but no ", options_.token_types,
                      ", which says where its images' tokens are");
    const int64_t all_patches = std::accumulate(patches.begin(), patches.end(), int64_t{0});
    const at::Tensor* pixels = Find(sample_.tensors, fields.pixels);
    TORCH_CHECK_VALUE(pixels != nullptr && pixels->size(0) == all_patches, "batching: sample ", index_, ": ", fields.pixels, " has ",
                      pixels == nullptr ? 0 : pixels->size(0), " rows, but ", fields.grid, " counts ", all_patches, " patches");
    const at::Tensor ids = types->to(at::kLong).contiguous();
    const MultimodalSample images{absl::MakeConstSpan(ids.const_data_ptr<int64_t>(), static_cast<size_t>(ids.numel())), patches, fields.type};
    const struct Cut cut = OkOrThrow(CutSample(images, item.kept.tokens), index_);
    cut_fields_.push_back(fields.grid);
    cut_fields_.push_back(fields.pixels);
    item.kept.tokens = cut.tokens;
    item.kept.rows[fields.grid] = cut.images;
    item.kept.rows[fields.pixels] = cut.patches;
    item.patches.insert(item.patches.end(), patches.begin(), patches.begin() + cut.images);
    const struct Cut least = OkOrThrow(CutToImages(images, 1), index_);
    least_tokens_ = std::max(least_tokens_, least.tokens);
    least_rows_[fields.grid] = least.images;
    least_rows_[fields.pixels] = least.patches;
  }

  bool LostAllImages(const Item& item) const {
    if (cut_fields_.empty() || !item.patches.empty()) return false;
    return sample_.tensors.size() == cut_fields_.size();
  }

  // What is cut in its tokens must not keep all of another tensor.
  void CheckAllCut() const {
    for (const auto& [name, tensor] : sample_.tensors) {
      const bool is_cut = std::find(cut_fields_.begin(), cut_fields_.end(), name) != cut_fields_.end();
      TORCH_CHECK_VALUE(is_cut, "batching: sample ", index_, " has ", sample_.input_ids.size(0), " tokens, more than seq_len = ",
                        options_.seq_len, ", and how ", name, " is cut with them is not known; shorten the sample first");
    }
  }

  // One image where all tensors are images', one token where there are none; else the sample as it is.
  void ShortenCopy(Item& item) const {
    for (const auto& [name, rows] : item.kept.rows) {
      if (least_rows_.count(name) == 0) return;
    }
    for (auto& [name, rows] : item.least.rows) rows = std::min(rows, least_rows_.at(name));
    item.least.tokens = std::min(item.kept.tokens, least_tokens_);
  }

  const TensorSample& sample_;
  const int64_t index_;  // in messages
  const PrepareOptions& options_;
  std::vector<std::string> cut_fields_;
  int64_t least_tokens_ = 1;
  std::map<std::string, int64_t> least_rows_;
};

// --- Packing ----------------------------------------------------------------------------------------

// Row after row of one output tensor.
class Packer {
 public:
  Packer(int64_t length, at::ScalarType dtype) : packed_(at::empty({length}, dtype)) {}

  void Append(const at::Tensor& tensor, int64_t rows) {
    packed_.narrow(0, next_, rows).copy_(tensor.narrow(0, 0, rows));
    next_ += rows;
  }

  void Fill(const c10::Scalar& value, int64_t rows) {
    if (rows > 0) packed_.narrow(0, next_, rows).fill_(value);
    next_ += rows;
  }

  const at::Tensor& packed() const { return packed_; }

 private:
  at::Tensor packed_;
  int64_t next_ = 0;
};

struct Stream {
  c10::Scalar fill;
  at::ScalarType dtype = at::kFloat;
};

// The dtype of a stream is that of the samples which have it.
std::map<std::string, Stream> FindStreams(const std::vector<TensorSample>& samples, const PrepareOptions& options) {
  std::map<std::string, Stream> streams;
  for (const auto& [name, fill] : options.streams) streams[name] = {fill, fill.isBoolean() ? at::kBool : at::kFloat};
  std::map<std::string, size_t> first;
  for (size_t i = 0; i < samples.size(); ++i) {
    for (const auto& [name, tensor] : samples[i].streams) {
      const auto [it, is_first] = first.emplace(name, i);
      if (is_first) {
        Stream& stream = streams[name];
        stream.dtype = tensor.scalar_type();
      }
      TORCH_CHECK_VALUE(streams[name].dtype == tensor.scalar_type(), "batching: ", name, " is ", tensor.scalar_type(), " in sample ",
                        options.first_number + static_cast<int64_t>(i), " and ", streams[name].dtype, " in sample ",
                        options.first_number + static_cast<int64_t>(it->second), "; it must be of one dtype");
    }
  }
  return streams;
}

class MicroBatchBuilder {
 public:
  MicroBatchBuilder(const PrepareOptions& options, std::map<std::string, Stream> streams)
      : options_(options), streams_(std::move(streams)) {}

  // The items one after the other; `padding` ones with no loss, and shortened where `shorten`.
  TensorMicroBatch Build(const std::vector<const Item*>& items, bool padding, bool shorten) const {
    std::vector<const Extent*> extents;
    for (const Item* item : items) extents.push_back(shorten ? &item->least : &item->kept);
    TensorMicroBatch batch;
    batch.kind = items[0]->kind;
    batch.padding = padding;
    int64_t tokens = 0;
    for (const Extent* extent : extents) {
      batch.seq_lens.push_back(extent->tokens);
      tokens += extent->tokens;
    }
    const int64_t multiple = options_.pad_to_multiple_of;
    const int64_t length = (tokens + multiple - 1) / multiple * multiple;
    batch.seq_lens.back() += length - tokens;
    PackTokens(items, extents, length - tokens, length, batch);
    PackTensors(items, extents, batch);
    if (padding) batch.loss_mask.fill_(false);
    return batch;
  }

 private:
  void PackTokens(const std::vector<const Item*>& items, const std::vector<const Extent*>& extents, int64_t num_padding,
                  int64_t length, TensorMicroBatch& batch) const {
    Packer input_ids(length, at::kLong);
    Packer loss_mask(length, at::kBool);
    Packer position_ids(length, at::kLong);
    std::map<std::string, Packer> streams;
    for (const auto& [name, stream] : streams_) streams.emplace(name, Packer(length, stream.dtype));
    const at::Tensor positions = at::arange(options_.seq_len, at::kLong);
    for (size_t i = 0; i < items.size(); ++i) {
      const TensorSample& sample = *items[i]->sample;
      const int64_t tokens = extents[i]->tokens;
      input_ids.Append(sample.input_ids, tokens);
      loss_mask.Append(sample.loss_mask, tokens);
      position_ids.Append(sample.position_ids.defined() ? sample.position_ids : positions, tokens);
      for (auto& [name, packer] : streams) {
        const auto it = sample.streams.find(name);
        if (it != sample.streams.end()) {
          packer.Append(it->second, tokens);
        } else {
          packer.Fill(streams_.at(name).fill, tokens);
        }
      }
    }
    input_ids.Fill(options_.pad_token_id, num_padding);
    loss_mask.Fill(false, num_padding);
    position_ids.Append(positions, num_padding);
    batch.input_ids = input_ids.packed();
    batch.loss_mask = loss_mask.packed();
    batch.position_ids = position_ids.packed();
    for (auto& [name, packer] : streams) {
      packer.Fill(streams_.at(name).fill, num_padding);
      batch.streams[name] = packer.packed();
    }
    batch.cu_seqlens = at::empty({static_cast<int64_t>(batch.seq_lens.size()) + 1}, at::kInt);
    int32_t* sums = batch.cu_seqlens.mutable_data_ptr<int32_t>();
    sums[0] = 0;
    for (size_t i = 0; i < batch.seq_lens.size(); ++i) sums[i + 1] = sums[i] + static_cast<int32_t>(batch.seq_lens[i]);
  }

  static void PackTensors(const std::vector<const Item*>& items, const std::vector<const Extent*>& extents, TensorMicroBatch& batch) {
    std::map<std::string, std::vector<at::Tensor>> parts;
    for (size_t i = 0; i < items.size(); ++i) {
      for (const auto& [name, rows] : extents[i]->rows) {
        parts[name].push_back(items[i]->sample->tensors.at(name).narrow(0, 0, rows));
      }
    }
    for (const auto& [name, tensors] : parts) batch.tensors[name] = at::cat(tensors, 0);
  }

  const PrepareOptions& options_;
  std::map<std::string, Stream> streams_;
};

// Tensors of one kind end up behind one another: dtype and all dimensions but the first must agree.
void CheckCompatible(const std::vector<TensorSample>& samples, int64_t first_number) {
  std::map<std::string, std::map<std::string, size_t>> first;  // by kind, by field
  for (size_t i = 0; i < samples.size(); ++i) {
    auto& fields = first[KindOf(samples[i])];
    for (const auto& [name, tensor] : samples[i].tensors) {
      const size_t j = fields.emplace(name, i).first->second;
      const at::Tensor& other = samples[j].tensors.at(name);
      TORCH_CHECK_VALUE(tensor.scalar_type() == other.scalar_type() && tensor.sizes().slice(1) == other.sizes().slice(1) &&
                            tensor.device() == other.device(),
                        "batching: ", name, " is ", tensor.scalar_type(), " ", tensor.sizes(), " on ", tensor.device(), " in sample ",
                        first_number + static_cast<int64_t>(i), " and ", other.scalar_type(), " ", other.sizes(), " on ",
                        other.device(), " in sample ", first_number + static_cast<int64_t>(j),
                        ": tensors of one kind are concatenated on dimension 0, and must agree in all else");
    }
  }
}

// --- Planning ---------------------------------------------------------------------------------------

double CostOfExtent(const PrepareOptions& options, const Extent& extent, const std::vector<int64_t>& patches, size_t num_images) {
  double cost = options.sequence_cost(extent.tokens);
  for (size_t i = 0; i < std::min(num_images, patches.size()); ++i) cost += CostOf(options.image_cost, patches[i]);
  return cost;
}

Plan PlanItems(const std::vector<Item>& items, const std::map<std::string, int>& kinds, const PrepareOptions& options) {
  std::vector<Sample> samples;
  for (const Item& item : items) {
    Sample sample;
    sample.tokens = item.kept.tokens;
    sample.cost = CostOfExtent(options, item.kept, item.patches, item.patches.size());
    sample.kind = kinds.at(item.kind);
    sample.least_tokens = item.least.tokens;
    sample.least_cost = CostOfExtent(options, item.least, item.patches, item.least.rows == item.kept.rows ? item.patches.size() : 1);
    samples.push_back(sample);
  }
  PlanOptions plan_options;
  // Micro-batches are padded afterwards, and seq_len is a multiple: they still fit.
  plan_options.seq_len = options.seq_len;
  plan_options.ranks = options.ranks;
  plan_options.balance = options.balance;
  plan_options.worth_a_step = options.worth_a_step;
  if (options.micro_batch_cost) {
    plan_options.micro_batch_cost = [&](absl::Span<const int64_t> members) {
      std::vector<int64_t> seq_lens;
      for (const int64_t i : members) seq_lens.push_back(samples[static_cast<size_t>(i)].tokens);
      return options.micro_batch_cost(seq_lens);
    };
  }
  const absl::StatusOr<Plan> plan = MakePlan(samples, plan_options);
  TORCH_CHECK_VALUE(plan.ok(), std::string(plan.status().message()));
  return *plan;
}

}  // namespace

Prepared Prepare(const std::vector<TensorSample>& samples, const PrepareOptions& options) {
  CheckOptions(options);
  Prepared prepared;
  Report& report = prepared.report;
  std::vector<Item> items;
  std::vector<int64_t> index_of;  // of each item among the samples
  std::map<std::string, int> kinds;
  for (size_t i = 0; i < samples.size(); ++i) {
    const int64_t number = options.first_number + static_cast<int64_t>(i);
    CheckSample(samples[i], number, options);
    Item item = Cutter(samples[i], number, options).Cut();
    const int64_t cut = samples[i].input_ids.size(0) - item.kept.tokens;
    report.truncated_tokens += cut;
    if (item.kept.tokens == 0) {
      ++report.dropped_samples;
      continue;
    }
    report.truncated_samples += cut > 0 ? 1 : 0;
    report.tokens += item.kept.tokens;
    report.loss_tokens += samples[i].loss_mask.narrow(0, 0, item.kept.tokens).to(at::kBool).sum().item<int64_t>();
    kinds[item.kind] = 0;
    items.push_back(std::move(item));
    index_of.push_back(static_cast<int64_t>(i));
  }
  CheckCompatible(samples, options.first_number);
  int num_kinds = 0;
  for (auto& [name, kind] : kinds) kind = num_kinds++;  // steps come in the order of the names

  const Plan plan = PlanItems(items, kinds, options);
  report.micro_steps = plan.micro_steps;
  report.padding_micro_batches = plan.padding_micro_batches;
  report.makespan = plan.makespan;
  report.ideal = plan.ideal;
  report.lower_bound = plan.lower_bound;

  const MicroBatchBuilder builder(options, FindStreams(samples, options));
  const bool shorten = options.balance == Balance::kLockstep;
  prepared.batches.resize(static_cast<size_t>(options.ranks));
  for (int64_t step = 0; step < plan.micro_steps; ++step) {
    for (int rank = 0; rank < options.ranks; ++rank) {
      const MicroBatch& planned = plan.at(rank, step);
      std::vector<const Item*> members;
      int64_t tokens = 0;
      for (const int64_t i : plan.samples_of(planned)) {
        const Item& item = items[static_cast<size_t>(i)];
        members.push_back(&item);
        tokens += planned.padding && shorten ? item.least.tokens : item.kept.tokens;
      }
      const int64_t multiple = options.pad_to_multiple_of;
      const int64_t length = (tokens + multiple - 1) / multiple * multiple;
      report.padding_tokens += planned.padding ? length : length - tokens;
      if (options.only_rank >= 0 && rank != options.only_rank) continue;
      TensorMicroBatch batch = builder.Build(members, planned.padding, planned.padding && shorten);
      batch.cost = planned.cost;
      if (!planned.padding) {
        for (const int64_t i : plan.samples_of(planned)) batch.samples.push_back(index_of[static_cast<size_t>(i)]);
      }
      prepared.batches[static_cast<size_t>(rank)].push_back(std::move(batch));
    }
  }
  return prepared;
}

}  // namespace lockstep::batching
