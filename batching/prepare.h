// From samples of tensors to packed micro-batches, one list for each rank.
//
//   PrepareOptions options;
//   options.seq_len = 4096;
//   options.ranks = 8;
//   Prepared prepared = Prepare(samples, options);
//   const TensorMicroBatch& mine = prepared.batches[rank][micro_step];
//
// Samples are cut to seq_len (never inside an image, video or audio clip), planned (plan.h), and
// packed: per-token values one sample after the other, with position ids that start anew at each;
// other tensors concatenated on dimension 0. Each output is allocated once.
//
// The cut knows these tensors. It is an error to cut a sample that has others.
//
//   image  pixel_values         rows of patches; image_grid_thw counts them for each image
//   video  pixel_values_videos  rows of patches; video_grid_thw counts them for each video
//   audio  input_features       one row for each clip, as in feature_attention_mask and
//                               input_features_mask
//
// Ranks that prepare the same samples in the same order get the same plan, with no communication.
// Not thread-safe against changes of the samples while it runs; otherwise thread-safe.

#ifndef LOCKSTEP_BATCHING_PREPARE_H_
#define LOCKSTEP_BATCHING_PREPARE_H_

#include <cstdint>
#include <functional>
#include <future>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ATen/core/TensorBody.h"
#include "batching/cost.h"
#include "batching/plan.h"
#include "c10/core/Scalar.h"

namespace lockstep::batching {

// n is the number of tokens. All tensors on the CPU.
struct TensorSample {
  at::Tensor input_ids;                       // int64 [n]
  at::Tensor loss_mask;                       // bool [n]
  at::Tensor position_ids;                    // int64 [n]; undefined: 0 to n - 1
  std::map<std::string, at::Tensor> streams;  // [n] each: further per-token values
  std::map<std::string, at::Tensor>
      tensors;  // concatenated on dimension 0: pixel_values, image_grid_thw, ...
  // Empty: the set of tensors that have rows after the cut, as "text" (none), "image",
  // "image+video" or "text+reward".
  std::string kind;
  // Rather than in a micro-step that needs padding, this sample is left for a later call
  // (Prepared::held), where all others of that micro-step may wait too.
  bool may_wait = false;
};

struct PrepareOptions {
  int64_t seq_len = 0;  // from 1 to kMaxSeqLen
  int ranks = 1;        // from 1 to kMaxRanks
  int only_rank = -1;   // -1: make every rank's micro-batches; else this rank's alone (the others'
                        // lists stay empty)
  int64_t pad_to_multiple_of = 1;  // tokens, of each micro-batch; must divide seq_len
  int64_t pad_token_id = 0;
  Balance balance = Balance::kLockstep;
  double worth_a_step = 0.005;

  // Cost of one sample: of a sequence, and of each of its images by patches.
  std::function<double(int64_t tokens)> sequence_cost = [](int64_t tokens) {
    return static_cast<double>(tokens);
  };
  SequenceCost image_cost;
  // Where a micro-batch costs something else than the sum over its sequences.
  std::function<double(const std::vector<int64_t>& seq_lens)> micro_batch_cost;

  // Every stream, and what padding tokens and samples without it get.
  std::map<std::string, c10::Scalar> streams;
  int64_t first_number =
      0;  // what messages call the first sample: 1 where the caller counts from 1
  // The stream of modality ids: 1, 2 and 3 for the placeholders of images, videos and audio. Empty,
  // or absent from a sample: none.
  std::string token_types = "mm_token_type_ids";
  // For samples without that stream: the placeholders' ids in input_ids. A sample needs neither
  // unless it is cut.
  std::optional<int64_t> image_token_id;
  std::optional<int64_t> video_token_id;
  std::optional<int64_t> audio_token_id;
};

struct TensorMicroBatch {
  std::string kind;
  bool padding = false;  // copies that only keep ranks aligned: no loss token
  double cost = 0;
  std::vector<int64_t> samples;  // indices into the samples; none for padding
  std::vector<int64_t>
      seq_lens;             // sum to the length; the last includes tokens that pad to a multiple
  at::Tensor input_ids;     // int64 [length]
  at::Tensor loss_mask;     // bool [length]
  at::Tensor position_ids;  // int64 [length]
  at::Tensor cu_seqlens;  // int32 [seq_lens + 1]: 0 and the running sums, as varlen attention takes
  std::map<std::string, at::Tensor> streams;  // [length] each
  std::map<std::string, at::Tensor> tensors;
};

struct Report {
  int64_t micro_steps = 0;
  int64_t tokens = 0;          // of samples, after the cut
  int64_t loss_tokens = 0;     // of these, those with loss
  int64_t padding_tokens = 0;  // of padding micro-batches, and those that pad to a multiple
  int64_t padding_micro_batches = 0;
  int64_t truncated_samples = 0;
  int64_t truncated_tokens = 0;  // cut off these, and those of dropped samples
  int64_t dropped_samples =
      0;  // that begin with an image longer than seq_len, so that no token was left
  double makespan = 0;
  double ideal = 0;
  double lower_bound = 0;  // 0: not known (see plan.h), or samples were held
  // Of who trains on what when: kinds, sample indices and lengths of all ranks' micro-batches.
  // Ranks whose fingerprints are the same follow the same plan.
  uint64_t fingerprint = 0;
};

struct Prepared {
  std::vector<std::vector<TensorMicroBatch>> batches;  // [rank][micro_step]
  std::vector<int64_t> held;  // indices of samples that wait, ascending; `report` leaves them out
  Report report;
};

// Throws c10::ValueError, naming the sample and the field: a per-token value of another length than
// input_ids, a stream that is not declared, tensors of one kind that cannot be concatenated, or
// that some of its samples lack, an image that contradicts its token types, a sample without
// tokens; or the option that is out of range.
Prepared Prepare(const std::vector<TensorSample>& samples, const PrepareOptions& options);

// The same on a thread of its own, while the caller trains on what it has: `get()` waits for the
// result, or throws what Prepare does. The future's destructor waits too. Costs are functions that
// the other thread may call; the samples' tensors stay as they are until it has ended.
std::future<Prepared> PrepareInBackground(std::vector<TensorSample> samples,
                                          PrepareOptions options);

}  // namespace lockstep::batching

#endif  // LOCKSTEP_BATCHING_PREPARE_H_
