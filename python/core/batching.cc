// The planner of batching/ for Python: python/lockstep/batching.py says what the functions do.

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "batching/cost.h"
#include "batching/plan.h"
#include "nlohmann/json.hpp"
#include "python/core/boundary.h"

namespace lockstep::python {
namespace {

using nlohmann::json;

batching::Balance ReadBalance(const std::string& name) {
  if (name == "makespan" || name == "lockstep") return batching::Balance::kMakespan;
  if (name == "round_robin") return batching::Balance::kRoundRobin;
  throw StatusError(absl::InvalidArgumentError(
      absl::StrCat("plan: balance must be \"makespan\" or \"round_robin\", not \"", name, "\"")));
}

// A plan counts ranks in an int.
int ReadRanks(int64_t ranks) {
  if (ranks >= 1 && ranks <= batching::kMaxRanks) return static_cast<int>(ranks);
  throw StatusError(absl::InvalidArgumentError(
      absl::StrCat("plan: ranks must be from 1 to ", batching::kMaxRanks, ", not ", ranks)));
}

batching::PlanOptions ReadOptions(const json& given) {
  batching::PlanOptions options;
  options.seq_len = given.at("seq_len");
  options.ranks = ReadRanks(given.at("ranks"));
  options.balance = ReadBalance(given.at("balance"));
  if (given.contains("worth_a_step")) options.worth_a_step = given["worth_a_step"];
  for (const auto& [rider, hosts] : given.at("hosts").get<std::map<std::string, std::set<int>>>())
    options.hosts[std::stoi(rider)] = hosts;
  return options;
}

batching::TransformerShape ReadShape(const json& config) {
  batching::TransformerShape shape;
  for (const auto& [name, field] : batching::kShapeFields) {
    if (config.contains(name)) shape.*field = config[name];
  }
  return shape;
}

}  // namespace
}  // namespace lockstep::python

extern "C" {

// Makes a plan of `size` samples. `options` is a JSON object: seq_len, ranks, balance, hosts (the
// numbers of kinds, by the rider's number as text) and, if it is not the default, worth_a_step. The
// caller gives *plan to lockstep_plan_delete.
char* lockstep_plan_make(const char* options, int64_t size, const int64_t* tokens,
                         const int32_t* kinds, const double* costs, const int64_t* least_tokens,
                         const double* least_costs, lockstep::batching::Plan** plan) {
  return lockstep::python::Guarded([&] {
    const auto read = lockstep::python::ReadOptions(nlohmann::json::parse(options));
    std::vector<lockstep::batching::Sample> samples(static_cast<size_t>(size));
    for (size_t i = 0; i < samples.size(); ++i)
      samples[i] = {tokens[i], costs[i], kinds[i], least_tokens[i], least_costs[i]};
    *plan = new lockstep::batching::Plan(
        lockstep::python::ValueOrThrow(lockstep::batching::MakePlan(samples, read)));
  });
}

// Writes micro_steps, tokens, padding_micro_batches, and the lengths of lockstep_plan_read's
// arrays: the numbers of micro-batches and of samples in them.
void lockstep_plan_count(const lockstep::batching::Plan* plan, int64_t counts[5]) {
  counts[0] = plan->micro_steps;
  counts[1] = plan->tokens;
  counts[2] = plan->padding_micro_batches;
  counts[3] = static_cast<int64_t>(plan->micro_batches.size());
  counts[4] = static_cast<int64_t>(plan->samples.size());
}

// Writes each micro-batch's kind, padding, cost, and begin and end of its samples; all samples; and
// makespan, ideal, lower_bound.
void lockstep_plan_read(const lockstep::batching::Plan* plan, int32_t* kinds, uint8_t* padding,
                        double* costs, int64_t* begins, int64_t* ends, int64_t* samples,
                        double bounds[3]) {
  for (size_t i = 0; i < plan->micro_batches.size(); ++i) {
    const lockstep::batching::MicroBatch& each = plan->micro_batches[i];
    kinds[i] = each.kind;
    padding[i] = each.padding ? 1 : 0;
    costs[i] = each.cost;
    begins[i] = each.begin;
    ends[i] = each.end;
  }
  for (size_t i = 0; i < plan->samples.size(); ++i) samples[i] = plan->samples[i];
  bounds[0] = plan->makespan;
  bounds[1] = plan->ideal;
  bounds[2] = plan->lower_bound;
}

void lockstep_plan_delete(lockstep::batching::Plan* plan) { delete plan; }

// Writes linear and quadratic cost of a sequence, then of an image, for a JSON object of a
// TransformerShape's fields.
char* lockstep_transformer_cost(const char* config, double costs[4]) {
  return lockstep::python::Guarded([&] {
    const auto shape = lockstep::python::ReadShape(nlohmann::json::parse(config));
    const auto cost = lockstep::python::ValueOrThrow(lockstep::batching::TransformerCost(shape));
    const auto image = lockstep::batching::VisionCost(shape);
    costs[0] = cost.linear;
    costs[1] = cost.quadratic;
    costs[2] = image.linear;
    costs[3] = image.quadratic;
  });
}

}  // extern "C"
