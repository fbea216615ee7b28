#include "batching/prepare.h"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "ATen/core/Dict.h"
#include "ATen/core/List.h"
#include "c10/util/Exception.h"
#include "nlohmann/json.hpp"
#include "torch/library.h"

// Prepare of batching/ for Python. python/lockstep/_prepare.py writes the options as JSON, reads
// the results, and says what they mean.

namespace lockstep::python {
namespace {

using nlohmann::json;
using Tensors = c10::Dict<std::string, at::Tensor>;

c10::Scalar ReadNumber(const json& value) {
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_number_integer()) return value.get<int64_t>();
  return value.get<double>();
}

batching::SequenceCost ReadCost(const json& pair) { return {pair.at(0), pair.at(1)}; }

batching::PrepareOptions ReadOptions(const json& given) {
  batching::PrepareOptions options;
  options.seq_len = given.at("seq_len");
  options.ranks = given.at("ranks");
  options.only_rank = given.at("only_rank");
  options.pad_to_multiple_of = given.at("pad_to_multiple_of");
  options.pad_token_id = given.at("pad_token_id");
  const std::string balance = given.at("balance");
  const bool is_round_robin = balance == "round_robin";
  // "lockstep" is the former name of "makespan".
  TORCH_CHECK_VALUE(is_round_robin || balance == "makespan" || balance == "lockstep",
                    "prepare: balance must be \"makespan\" or \"round_robin\", not \"", balance,
                    "\"");
  options.balance = is_round_robin ? batching::Balance::kRoundRobin : batching::Balance::kMakespan;
  if (given.contains("worth_a_step")) options.worth_a_step = given["worth_a_step"];
  if (given.contains("cost")) {
    options.sequence_cost = [cost = ReadCost(given["cost"].at(0))](int64_t tokens) {
      const auto length = static_cast<double>(tokens);
      return cost.linear * length + cost.quadratic * length * length;
    };
    options.image_cost = ReadCost(given["cost"].at(1));
  }
  options.mix_kinds = given.at("mix_kinds");
  for (const auto& [name, fill] : given.at("streams").items())
    options.streams[name] = {ReadNumber(fill.at(0)), ReadNumber(fill.at(1))};
  options.own_rows = given.at("own_rows");
  options.token_types = given.at("token_types");
  for (const auto& [name, id] : {std::pair{"image_token_id", &options.image_token_id},
                                 {"video_token_id", &options.video_token_id},
                                 {"audio_token_id", &options.audio_token_id}})
    if (given.contains(name)) *id = given[name].get<int64_t>();
  return options;
}

batching::TensorSample ReadSample(const Tensors& fields, const batching::PrepareOptions& options) {
  batching::TensorSample sample;
  const std::map<std::string, at::Tensor*> own = {{"input_ids", &sample.input_ids},
                                                  {"loss_mask", &sample.loss_mask},
                                                  {"position_ids", &sample.position_ids}};
  for (const auto& field : fields) {
    const std::string& name = field.key();
    if (const auto found = own.find(name); found != own.end()) {
      *found->second = field.value();
    } else if (name == options.token_types || options.streams.count(name) > 0) {
      sample.streams[name] = field.value();
    } else {
      sample.tensors[name] = field.value();
    }
  }
  return sample;
}

Tensors WriteBatch(const batching::TensorMicroBatch& batch) {
  Tensors fields;
  fields.insert("input_ids", batch.input_ids);
  fields.insert("loss_mask", batch.loss_mask);
  fields.insert("position_ids", batch.position_ids);
  fields.insert("cu_seqlens", batch.cu_seqlens);
  for (const auto& [name, tensor] : batch.streams) fields.insert(name, tensor);
  for (const auto& [name, tensor] : batch.tensors) fields.insert(name, tensor);
  return fields;
}

json WriteReport(const batching::Report& report) {
  return {{"micro_steps", report.micro_steps},
          {"tokens", report.tokens},
          {"loss_tokens", report.loss_tokens},
          {"padding_tokens", report.padding_tokens},
          {"padding_micro_batches", report.padding_micro_batches},
          {"truncated_samples", report.truncated_samples},
          {"truncated_tokens", report.truncated_tokens},
          {"truncated_loss_tokens", report.truncated_loss_tokens},
          {"dropped_samples", report.dropped_samples},
          {"samples_without_loss", report.samples_without_loss},
          {"makespan", report.makespan},
          {"ideal", report.ideal},
          {"lower_bound", report.lower_bound},
          {"fingerprint", report.fingerprint}};
}

// Returns the micro-batches of all ranks, rank after rank, and JSON: what is no tensor of each
// micro-batch, the samples that wait, and the report.
std::tuple<c10::List<Tensors>, std::string> PrepareBatches(const c10::List<Tensors>& samples,
                                                           const std::string& options_text) {
  const json given = json::parse(options_text);
  const batching::PrepareOptions options = ReadOptions(given);
  std::vector<batching::TensorSample> read;
  for (size_t i = 0; i < samples.size(); ++i) {
    read.push_back(ReadSample(samples.get(i), options));
    read.back().kind = given.at("kinds").at(i);
    read.back().may_wait = given.at("may_wait").at(i);
  }
  const batching::Prepared prepared = Prepare(read, options);
  c10::List<Tensors> batches;
  json facts = json::array();
  for (const auto& of_rank : prepared.batches) {
    json of_steps = json::array();
    for (const batching::TensorMicroBatch& batch : of_rank) {
      batches.push_back(WriteBatch(batch));
      of_steps.push_back({{"kind", batch.kind},
                          {"padding", batch.padding},
                          {"padding_tokens", batch.padding_tokens},
                          {"cost", batch.cost},
                          {"samples", batch.samples},
                          {"seq_lens", batch.seq_lens}});
    }
    facts.push_back(std::move(of_steps));
  }
  const json result = {{"batches", std::move(facts)},
                       {"held", prepared.held},
                       {"report", WriteReport(prepared.report)}};
  return {batches, result.dump()};
}

TORCH_LIBRARY_FRAGMENT(lockstep, library) {
  library.def(
      "prepare_batches(Dict(str, Tensor)[] samples, str options) -> (Dict(str, Tensor)[], str)",
      PrepareBatches);
}

}  // namespace
}  // namespace lockstep::python
