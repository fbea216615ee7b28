// Packs samples of tensors into micro-batches, one list for each rank.
//
//    PrepareOptions options;
//    options.seq_len = 4096;
//    options.ranks = 8;
//    Prepared prepared = Prepare(samples, options);
//    const TensorMicroBatch& mine = prepared.batches[rank][micro_step];
//
// The failures this prevents. Padding each sample to seq_len spends most of a step on padding.
// Ranks that pack on their own get different numbers and kinds of micro-batches, and hang in a
// collective. Each step lasts as long as its most expensive rank, so unbalanced packing wastes the
// others' time.
//
// Prepare cuts samples to seq_len (never inside an image, video or audio clip), plans them (plan.h)
// and packs them. It concatenates the samples' per-token values; position ids start again at 0 in
// each sample. It concatenates other tensors on dimension 0. Each output is allocated once. Padding
// trains nothing: it has no loss token, and its per-token values are those declared for padding.
//
// Prepare can cut these tensors. A sample that has others and is longer than seq_len is an error.
//
//    - image: pixel_values, with image_grid_thw, which counts each image's patches.
//    - video: pixel_values_videos, with video_grid_thw, which counts each video's patches.
//    - audio: input_features, feature_attention_mask and input_features_mask, with a row for each
//      clip.
//
// Use it for samples on the CPU. If loading them is expensive, use PrepareFromIndex: it plans from
// their sizes. To plan without tensors, use plan.h.
//
// Ranks that prepare the same samples in the same order get the same plan, without communication.
// Thread-safe, but no other thread may change the samples while it runs. Source: prime-rl's
// packing, pull requests 1918 and 1959.

#ifndef LOCKSTEP_BATCHING_PREPARE_H_
#define LOCKSTEP_BATCHING_PREPARE_H_

#include <cstdint>
#include <functional>
#include <future>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "ATen/core/TensorBody.h"
#include "batching/cost.h"
#include "batching/outline.h"
#include "batching/plan.h"
#include "c10/core/Scalar.h"

namespace lockstep::batching {

// Positions of a token where samples have pictures: time, row and column.
constexpr int64_t kPositionAxes = 3;

// One sample. n is its number of tokens. All tensors are on the CPU.
struct TensorSample {
  at::Tensor input_ids;                       // int64 [n]
  at::Tensor loss_mask;                       // bool [n]; other dtypes hold only 0 and 1. The first
                                              // is ignored: no token before it predicts it
  at::Tensor position_ids;                    // int64 [n], or [kPositionAxes, n] with pictures;
                                              // undefined: 0 to n - 1
  std::map<std::string, at::Tensor> streams;  // [n, ...] each: further per-token values
  // Concatenated on dimension 0: pixel_values, image_grid_thw, ... A tensor that Prepare does not
  // know has one row, which belongs to the whole sample, unless PrepareOptions::own_rows names it.
  std::map<std::string, at::Tensor> tensors;
  // Empty: the modalities that have rows after the cut, as "text" (none), "image" or "image+video".
  // If only some samples of such a kind hold another tensor, its name is added: "text+reward".
  std::string kind;
  // Leaves this sample for a later call (Prepared::held) if its micro-step would need padding and
  // all other samples of that micro-step may wait too.
  bool may_wait = false;
};

// The values of a stream for tokens that have none of their own.
struct StreamFill {
  c10::Scalar absent = 0.0;   // in samples without the stream
  c10::Scalar padding = 0.0;  // in padding tokens, and in all tokens of padding micro-batches
};

// The layout of micro-batches, and the costs that balance them.
struct PrepareOptions {
  int64_t seq_len = 0;  // from 1 to kMaxSeqLen
  int ranks = 1;        // from 1 to kMaxRanks
  // Makes only this rank's micro-batches; the other ranks' lists stay empty. -1: makes all.
  int only_rank = -1;
  int64_t pad_to_multiple_of = 1;  // in tokens of each micro-batch; must divide seq_len
  int64_t pad_token_id = 0;
  Balance balance = Balance::kMakespan;
  // The share of the makespan that an additional micro-step must save: see plan.h.
  double worth_a_step = PlanOptions().worth_a_step;

  // The cost of a sample: sequence_cost of its tokens, plus image_cost of each image and video.
  std::function<double(int64_t tokens)> sequence_cost = [](int64_t tokens) {
    return static_cast<double>(tokens);
  };
  SequenceCost image_cost;
  // Overrides the sum over the samples of a micro-batch.
  std::function<double(const std::vector<int64_t>& seq_lens)> micro_batch_cost;

  // Lets samples ride in micro-batches of a kind that has their tensors and more, as text with
  // images, if the plan gets better (PlanOptions::hosts). kRoundRobin never does. A sample whose
  // `kind` is set rides only if it is the name that Prepare would give to the kind.
  bool mix_kinds = true;

  // Above 1, groups of at most so many ranks may share a long sample in a micro-step, at an
  // additional cost of `split_overhead` times its cost (PlanOptions::max_group). Only samples
  // without tensors are split; those with images, videos or clips stay whole.
  int max_group = PlanOptions().max_group;
  double split_overhead = PlanOptions().split_overhead;

  // Every stream. All samples must give it one dtype and one shape of a token. A padding value of 0
  // takes a weight out of a loss; a divisor, such as a temperature, needs another.
  std::map<std::string, StreamFill> streams;
  // Tensors with any number of rows, which follow neither the sample nor its images, videos or
  // clips.
  std::set<std::string> own_rows;
  int64_t first_number = 0;  // number of the first sample in messages
  // The stream of modality ids: 1, 2 and 3 for the placeholders of images, videos and audio. Empty,
  // or absent from a sample: none.
  std::string token_types = "mm_token_type_ids";
  // For samples without that stream: the placeholders' ids in input_ids. A sample needs neither
  // unless it is cut.
  std::optional<int64_t> image_token_id;
  std::optional<int64_t> video_token_id;
  std::optional<int64_t> audio_token_id;
};

// A rank's part of a sample that a group of ranks holds in this micro-step: plan.h.
struct SampleShare {
  int64_t sample = 0;  // index into the samples
  int64_t tokens = 0;  // of the whole sample, after the cut
  int first_rank = 0;  // the group: `ranks` consecutive ranks from here on
  int ranks = 0;
  int place = 0;  // of this rank in the group: it holds PiecesOf(tokens, ranks, place)
};

// The packed samples of one rank in one micro-step. length is the sum of seq_lens.
struct TensorMicroBatch {
  std::string kind;
  bool padding = false;        // copies without loss tokens, which only keep ranks aligned
  int64_t padding_tokens = 0;  // the last ones; in a padding micro-batch, all
  double cost = 0;
  std::vector<int64_t> samples;   // indices into the samples; none for padding
  std::vector<int64_t> seq_lens;  // sum to the length; the last includes padding to a multiple
  at::Tensor input_ids;           // int64 [length]
  at::Tensor loss_mask;           // bool [length]; false for the first token of each sample
  at::Tensor position_ids;  // int64 [length]; [kPositionAxes, length] if one of its samples has it
  at::Tensor cu_seqlens;    // int32 [seq_lens + 1]: 0 and the running sums, for varlen attention
  // [length, ...] each. A stream that no sample has is [length].
  std::map<std::string, at::Tensor> streams;
  std::map<std::string, at::Tensor> tensors;
  // The first sequences are this rank's shares of split samples: the tokens of its pieces, one
  // piece after the other, with the positions that they have in the sample.
  std::vector<SampleShare> shares;
  // The largest number of ranks that share one sample in this micro-step, on any rank; 1 if no
  // sample is split.
  int largest_group = 1;
  // int64 [length], only if largest_group is above 1. For each token the id of the next token of
  // its sample, which may be on another rank. -100 if the next token has no loss or does not exist.
  at::Tensor labels;
};

// Counts over all ranks, for a log. All ranks get the same.
struct Report {
  int64_t micro_steps = 0;
  int64_t tokens = 0;          // of samples, after the cut
  int64_t loss_tokens = 0;     // part of `tokens`: as many as the micro-batches' loss_mask marks
  int64_t padding_tokens = 0;  // in padding micro-batches, and from padding to a multiple
  int64_t padding_micro_batches = 0;
  int64_t split_samples = 0;  // that groups of ranks share
  int64_t truncated_samples = 0;
  int64_t truncated_tokens = 0;       // including all tokens of dropped samples
  int64_t truncated_loss_tokens = 0;  // part of `truncated_tokens`: the loss loses these
  int64_t dropped_samples = 0;        // begin with an image longer than seq_len: no token is left
  int64_t samples_without_loss = 0;   // no token with a loss is left, or was there
  double makespan = 0;                // sum over micro-steps of the most expensive rank's cost
  double ideal = 0;                   // cost of all samples / ranks
  double lower_bound = 0;             // 0: not known (see plan.h), or samples were held
  // A hash of the kinds, sample indices and lengths of all ranks' micro-batches. Ranks with the
  // same fingerprint follow the same plan.
  uint64_t fingerprint = 0;
};

// The result of Prepare.
struct Prepared {
  std::vector<std::vector<TensorMicroBatch>> batches;  // [rank][micro_step]
  std::vector<int64_t> held;  // indices of samples that wait, ascending; `report` leaves them out
  Report report;
};

// Returns each rank's micro-batches. Throws c10::ValueError, which names the option, or the sample
// and the field:
//
//    - an option is out of range
//    - a sample has no tokens, or a per-token value of another length than input_ids
//    - a sample has a stream that options.streams does not name
//    - streams of one name differ in dtype, or in the shape of a token
//    - a tensor has rows that follow no declared count
//    - samples of one kind have different tensors, or tensors that cannot be concatenated
//    - images, videos or audio clips do not match their placeholders
//    - a sample is longer than seq_len and has a tensor that Prepare cannot cut
//    - a cost function returns a number that is negative or not finite
Prepared Prepare(const std::vector<TensorSample>& samples, const PrepareOptions& options);

// Returns a sample of an index by its place, from 0.
using LoadSample = std::function<TensorSample(int64_t index)>;

// Returns what Prepare returns for the samples that `index` describes, bit for bit. Calls `load`
// only for samples of micro-batches that are made: with only_rank those of this rank, and those
// that its padding copies. It loads one micro-batch after the other. Throws c10::ValueError if a
// loaded sample differs from its outline.
Prepared PrepareFromIndex(const std::vector<Outline>& index, const LoadSample& load,
                          const PrepareOptions& options);

// Runs Prepare on a new thread, so that the caller can train meanwhile. `get()` waits for the
// result and throws the errors of Prepare; the future's destructor waits too. The new thread calls
// the cost functions. The caller must not change the samples' tensors until the thread has ended.
std::future<Prepared> PrepareInBackground(std::vector<TensorSample> samples,
                                          PrepareOptions options);

}  // namespace lockstep::batching

#endif  // LOCKSTEP_BATCHING_PREPARE_H_
