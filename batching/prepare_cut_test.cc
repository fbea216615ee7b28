// Tests the cut of samples to seq_len: by example, and on random samples with images, videos and
// audio against a naive cut that looks at each token.

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "ATen/ops/arange.h"
#include "ATen/ops/cat.h"
#include "ATen/ops/equal.h"
#include "ATen/ops/ones.h"
#include "ATen/ops/tensor.h"
#include "ATen/ops/zeros.h"
#include "batching/prepare.h"
#include "batching/testing/test_samples.h"
#include "c10/util/Exception.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::batching {
namespace {

using ::testing::ElementsAre;

TEST(Prepare, LongTextIsCutAndCounted) {
  const Prepared prepared = Prepare({Text(13), Text(8)}, With(8, 1));
  EXPECT_EQ(prepared.report.truncated_samples, 1);
  EXPECT_EQ(prepared.report.truncated_tokens, 5);
  EXPECT_EQ(prepared.report.tokens, 16);
}

TEST(Prepare, TheCutNeverSplitsAnImage) {
  // Tokens: t IIII t II t. Seven would end inside the second image.
  const Prepared prepared = Prepare({Images({16, 8})}, With(7, 1));

  const TensorMicroBatch& batch = prepared.batches[0][0];
  EXPECT_EQ(batch.input_ids.numel(), 6);
  EXPECT_EQ(batch.tensors.at("pixel_values").size(0), 16);
  EXPECT_EQ(batch.tensors.at("image_grid_thw").size(0), 1);
  EXPECT_EQ(prepared.report.truncated_tokens, 3);
}

TEST(Prepare, ASampleThatLosesAllItsImagesIsText) {
  const Prepared prepared = Prepare({Images({16})}, With(3, 1));

  const TensorMicroBatch& batch = prepared.batches[0][0];
  EXPECT_EQ(batch.kind, "text");
  EXPECT_EQ(batch.input_ids.numel(), 1);
  EXPECT_TRUE(batch.tensors.empty());
}

TEST(Prepare, ASampleThatFitsNeedsNoTokenTypes) {
  TensorSample sample = Images({16, 8});
  sample.streams.clear();

  const Prepared prepared = Prepare({sample}, With(9, 2));

  for (const auto& batches : prepared.batches) {
    const TensorMicroBatch& batch = batches.at(0);
    EXPECT_EQ(batch.kind, "image");
    EXPECT_EQ(batch.input_ids.numel(), 9) << "no shorter copy is known to be whole";
    EXPECT_EQ(batch.tensors.at("pixel_values").size(0), 24);
  }
}

TEST(Prepare, ImageTokenIdStandsForTokenTypes) {
  TensorSample sample = Images({16, 8});
  sample.input_ids.masked_fill_(sample.streams["mm_token_type_ids"].eq(1), 77);
  sample.streams.clear();
  PrepareOptions options = With(7, 2);
  options.image_token_id = 77;

  const Prepared prepared = Prepare({sample}, options);

  for (const auto& batches : prepared.batches) {
    const TensorMicroBatch& batch = batches.at(0);
    EXPECT_EQ(batch.input_ids.numel(), batch.padding ? 5 : 6);
    EXPECT_EQ(batch.tensors.at("pixel_values").size(0), 16);
  }
}

TEST(Prepare, TheKindIsTheSetOfTensorsThatAreLeft) {
  TensorSample both = Images({8, 8});  // t II t II t, of which the second is made a video
  both.tensors["pixel_values_videos"] = both.tensors["pixel_values"].narrow(0, 8, 8);
  both.tensors["video_grid_thw"] = both.tensors["image_grid_thw"].narrow(0, 1, 1);
  both.tensors["pixel_values"] = both.tensors["pixel_values"].narrow(0, 0, 8);
  both.tensors["image_grid_thw"] = both.tensors["image_grid_thw"].narrow(0, 0, 1);
  both.streams["mm_token_type_ids"].narrow(0, 4, 2).fill_(2);
  TensorSample rewarded = Text(3);
  rewarded.tensors["reward"] = at::ones({1});
  TensorSample none = Text(3);
  none.tensors["pixel_values"] = at::zeros({0, 3});
  none.tensors["image_grid_thw"] = at::zeros({0, 3}, at::kLong);
  const auto kind = [](const TensorSample& sample, int64_t seq_len) {
    return Prepare({sample}, With(seq_len, 1)).batches[0].at(0).kind;
  };

  EXPECT_EQ(kind(both, 7), "image+video");
  EXPECT_EQ(kind(both, 5), "image");
  EXPECT_EQ(kind(both, 2), "text");
  EXPECT_EQ(kind(rewarded, 3), "text");
  const Prepared mixed = Prepare({rewarded, none, rewarded}, With(3, 1));
  EXPECT_EQ(mixed.batches[0].at(0).kind, "text");
  EXPECT_EQ(mixed.batches[0].at(1).kind, "text+reward");
  TensorSample named = rewarded;
  named.kind = "text";
  EXPECT_EQ(Prepare({rewarded, named}, With(6, 1)).batches[0].at(0).samples.size(), 2);
  EXPECT_EQ(kind(none, 3), "text");
  EXPECT_TRUE(Prepare({none}, With(3, 1)).batches[0].at(0).tensors.empty());
}

TEST(Prepare, AClipInChunksIsPackedWholeWhereItFits) {
  TensorSample sample = Text(5);
  sample.streams["mm_token_type_ids"] = at::tensor({3, 0, 3, 0, 3}, at::kLong);
  sample.tensors["input_features"] = at::ones({1, 2});

  const Prepared prepared = Prepare({sample}, With(5, 2));

  for (const auto& batches : prepared.batches) {
    EXPECT_EQ(batches.at(0).kind, "audio");
    EXPECT_EQ(batches.at(0).input_ids.numel(), 5);
  }
}

TEST(Prepare, ASampleThatBeginsWithTooLongAnImageIsDroppedAndCounted) {
  TensorSample sample = Images({16});
  for (at::Tensor* tensor :
       {&sample.input_ids, &sample.loss_mask, &sample.streams["mm_token_type_ids"]}) {
    *tensor = tensor->narrow(0, 1, 4);  // its first token is the image's
  }

  const Prepared prepared = Prepare({sample, Text(2)}, With(3, 1));

  EXPECT_EQ(prepared.report.dropped_samples, 1);
  EXPECT_EQ(prepared.report.truncated_tokens, 4);
  EXPECT_THAT(prepared.batches[0][0].samples, ElementsAre(1));
}

// --- Against a naive cut -------------------------------------------------------------------------

constexpr int kModalities = 3;
constexpr const char* kNames[kModalities] = {"image", "video", "audio"};
constexpr const char* kRows[kModalities] = {"pixel_values", "pixel_values_videos",
                                            "input_features"};
constexpr const char* kItems[kModalities] = {"image_grid_thw", "video_grid_thw",
                                             "feature_attention_mask"};
constexpr int64_t kTokenIds[kModalities] = {-1, -2, -3};

// The meaning of a token: item `item` of a modality from 0, or text.
struct Meaning {
  int modality = -1;
  int item = 0;
};

struct RandomSample {
  TensorSample sample;
  std::vector<Meaning> tokens;
  std::vector<int64_t> rows[kModalities];  // of each item: what its `kRows` tensor has
};

// Images and audio clips are runs of placeholders. A video's frames have other tokens between them,
// and sometimes an image or an audio clip.
class SampleMaker {
 public:
  SampleMaker(std::mt19937& random, int64_t first_id) : random_(random), first_id_(first_id) {}

  RandomSample Make(bool with_types) {
    for (int64_t part = Draw(1, 5); part > 0; --part) {
      AddText(Draw(0, 3));
      const int modality = static_cast<int>(Draw(-1, kModalities - 1));
      if (modality == 1) {
        AddVideo();
      } else if (modality >= 0) {
        AddRun(modality);
      }
    }
    AddText(Draw(made_.tokens.empty() ? 1 : 0, 3));
    Fill(with_types);
    return std::move(made_);
  }

 private:
  int64_t Draw(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random_);
  }

  void AddText(int64_t count) {
    made_.tokens.insert(made_.tokens.end(), static_cast<size_t>(count), Meaning{});
  }

  // An image of 4 patches for each token, or one audio clip with text around it.
  void AddRun(int modality) {
    const int64_t count = Draw(1, 4);
    const Meaning meaning{modality, static_cast<int>(made_.rows[modality].size())};
    if (modality == 2) AddText(1);
    made_.tokens.insert(made_.tokens.end(), static_cast<size_t>(count), meaning);
    if (modality == 2) AddText(1);
    made_.rows[modality].push_back(modality == 2 ? 1 : 4 * count);
  }

  void AddVideo() {
    const Meaning meaning{1, static_cast<int>(made_.rows[1].size())};
    const int64_t frames = Draw(1, 3), count = Draw(1, 2);
    made_.rows[1].push_back(4 * frames * count);
    for (int64_t frame = 0; frame < frames; ++frame) {
      if (frame > 0) AddText(Draw(0, 2));
      if (frame > 0 && Draw(0, 3) == 0) AddRun(Draw(0, 1) == 0 ? 0 : 2);
      made_.tokens.insert(made_.tokens.end(), static_cast<size_t>(count), meaning);
    }
  }

  void Fill(bool with_types) {
    const int64_t count = static_cast<int64_t>(made_.tokens.size());
    TensorSample& sample = made_.sample;
    sample = Text(count, first_id_);
    at::Tensor types = at::zeros({count}, at::kLong);
    for (int64_t t = 0; t < count; ++t) {
      const int modality = made_.tokens[static_cast<size_t>(t)].modality;
      if (modality < 0) continue;
      types[t] = modality + 1;
      if (!with_types) sample.input_ids[t] = kTokenIds[modality];
    }
    if (with_types) sample.streams["mm_token_type_ids"] = types;
    for (int m = 0; m < kModalities; ++m) {
      const std::vector<int64_t>& rows = made_.rows[m];
      // Without items: no tensors, or tensors without rows.
      if (rows.empty() && Draw(0, 2) > 0) continue;
      int64_t all = 0;
      std::vector<int64_t> grid;
      for (const int64_t n : rows) {
        all += n;
        grid.insert(grid.end(), {1, 2, n / 2});
      }
      const int64_t items = static_cast<int64_t>(rows.size());
      const int64_t first = 10 * first_id_;
      sample.tensors[kRows[m]] = at::arange(first, first + 2 * all, at::kFloat).view({all, 2});
      sample.tensors[kItems[m]] = m == 2 ? at::arange(first, first + items, at::kFloat)
                                         : at::tensor(grid, at::kLong).view({items, 3});
    }
  }

  std::mt19937& random_;
  const int64_t first_id_;
  RandomSample made_;
};

// --- The naive computation ---

bool SplitsAnItem(const RandomSample& sample, size_t position) {
  for (size_t before = 0; before < position; ++before) {
    for (size_t after = position; after < sample.tokens.size(); ++after) {
      const Meaning &a = sample.tokens[before], &b = sample.tokens[after];
      if (a.modality >= 0 && a.modality == b.modality && a.item == b.item) return true;
    }
  }
  return false;
}

int64_t NumItems(const RandomSample& sample, size_t position, int modality) {
  int64_t items = 0;
  for (size_t t = 0; t < position; ++t) {
    if (sample.tokens[t].modality == modality)
      items = std::max<int64_t>(items, sample.tokens[t].item + 1);
  }
  return items;
}

size_t NaiveCut(const RandomSample& sample, int64_t seq_len) {
  size_t position = std::min(sample.tokens.size(), static_cast<size_t>(seq_len));
  while (SplitsAnItem(sample, position)) --position;
  return position;
}

// The shortest prefix with all modalities of the sample cut at `kept`.
size_t NaiveShortest(const RandomSample& sample, size_t kept) {
  for (size_t position = 1; position < kept; ++position) {
    bool is_whole = !SplitsAnItem(sample, position);
    for (int m = 0; m < kModalities; ++m)
      is_whole &= NumItems(sample, position, m) > 0 || NumItems(sample, kept, m) == 0;
    if (is_whole) return position;
  }
  return kept;
}

std::string NaiveKind(const RandomSample& sample, size_t kept) {
  std::string kind;
  for (int m = 0; m < kModalities; ++m) {
    if (NumItems(sample, kept, m) > 0) kind += (kind.empty() ? "" : "+") + std::string(kNames[m]);
  }
  return kind.empty() ? "text" : kind;
}

struct Prefix {
  const RandomSample* sample;
  size_t tokens;
};

// Whether `batch` holds these prefixes and nothing else.
bool Holds(const TensorMicroBatch& batch, const std::vector<Prefix>& prefixes) {
  std::vector<at::Tensor> ids;
  std::map<std::string, std::vector<at::Tensor>> tensors;
  for (const Prefix& prefix : prefixes) {
    const TensorSample& sample = prefix.sample->sample;
    ids.push_back(sample.input_ids.narrow(0, 0, static_cast<int64_t>(prefix.tokens)));
    for (int m = 0; m < kModalities; ++m) {
      const int64_t items = NumItems(*prefix.sample, prefix.tokens, m);
      if (items == 0) continue;
      int64_t rows = 0;
      for (int64_t i = 0; i < items; ++i) rows += prefix.sample->rows[m][static_cast<size_t>(i)];
      tensors[kRows[m]].push_back(sample.tensors.at(kRows[m]).narrow(0, 0, rows));
      tensors[kItems[m]].push_back(sample.tensors.at(kItems[m]).narrow(0, 0, items));
    }
  }
  if (!at::equal(batch.input_ids, at::cat(ids)) || batch.tensors.size() != tensors.size())
    return false;
  return std::all_of(tensors.begin(), tensors.end(), [&](const auto& entry) {
    const auto found = batch.tensors.find(entry.first);
    return found != batch.tensors.end() && at::equal(found->second, at::cat(entry.second));
  });
}

void ExpectNaive(const std::vector<RandomSample>& samples, const Prepared& prepared,
                 const PrepareOptions& options) {
  std::vector<size_t> kept;
  int64_t tokens = 0, dropped = 0;
  for (const RandomSample& sample : samples) {
    kept.push_back(NaiveCut(sample, options.seq_len));
    tokens += static_cast<int64_t>(kept.back());
    dropped += kept.back() == 0 ? 1 : 0;
  }
  std::vector<int> times(samples.size());
  for (const auto& batches : prepared.batches) {
    for (const TensorMicroBatch& batch : batches) {
      std::vector<Prefix> prefixes;
      bool any_of_kind = batch.padding;
      for (const int64_t i : batch.samples) {
        const size_t index = static_cast<size_t>(i);
        ++times[index];
        const std::string kind = NaiveKind(samples[index], kept[index]);
        any_of_kind |= kind == batch.kind;
        EXPECT_TRUE(kind == batch.kind || options.mix_kinds);
        prefixes.push_back({&samples[index], kept[index]});
      }
      EXPECT_TRUE(any_of_kind) << "no sample is of kind " << batch.kind;
      bool holds = !batch.padding && Holds(batch, prefixes);
      for (size_t i = 0; batch.padding && !holds && i < samples.size(); ++i) {
        if (kept[i] == 0 || NaiveKind(samples[i], kept[i]) != batch.kind) continue;
        const size_t least =
            options.balance == Balance::kLockstep ? NaiveShortest(samples[i], kept[i]) : kept[i];
        holds = Holds(batch, {{&samples[i], least}});
      }
      // Round robin copies a whole micro-batch of the kind, which may hold several samples.
      for (size_t b = 0; batch.padding && !holds && b < prepared.batches[0].size(); ++b) {
        prefixes.clear();
        for (const int64_t i : prepared.batches[0][b].samples)
          prefixes.push_back({&samples[static_cast<size_t>(i)], kept[static_cast<size_t>(i)]});
        holds =
            options.balance == Balance::kRoundRobin && !prefixes.empty() && Holds(batch, prefixes);
      }
      EXPECT_TRUE(holds) << "a micro-batch of kind " << batch.kind << ", padding " << batch.padding;
    }
  }
  for (size_t i = 0; i < samples.size(); ++i) EXPECT_EQ(times[i], kept[i] > 0 ? 1 : 0) << i;
  EXPECT_EQ(prepared.report.tokens, tokens);
  EXPECT_EQ(prepared.report.dropped_samples, dropped);
}

TEST(Prepare, AgreesWithTheNaiveCutOnRandomSamples) {
  std::map<std::string, int> kinds;
  int64_t cut = 0, padding = 0;
  for (unsigned seed = 0; seed < 1200; ++seed) {
    std::mt19937 random(seed);
    PrepareOptions options =
        With(1 + static_cast<int64_t>(random() % 20), 1 + static_cast<int>(random() % 3),
             random() % 4 > 0 ? Balance::kLockstep : Balance::kRoundRobin);
    const bool with_types = random() % 2 == 0;
    options.mix_kinds = seed % 2 == 0;
    if (!with_types) {
      options.image_token_id = kTokenIds[0];
      options.video_token_id = kTokenIds[1];
      options.audio_token_id = kTokenIds[2];
    }
    std::vector<RandomSample> samples;
    std::vector<TensorSample> tensors;
    for (int64_t i = 1 + static_cast<int64_t>(random() % 5); i > 0; --i) {
      samples.push_back(SampleMaker(random, 1000 * i).Make(with_types));
      tensors.push_back(samples.back().sample);
    }

    const Prepared prepared = Prepare(tensors, options);

    ExpectNaive(samples, prepared, options);
    ASSERT_FALSE(HasFailure()) << "seed " << seed;
    cut += prepared.report.truncated_samples;
    padding += prepared.report.padding_micro_batches;
    for (const TensorMicroBatch& batch : prepared.batches[0]) ++kinds[batch.kind];
  }
  EXPECT_EQ(kinds.size(), 8u) << "every set of modalities";
  EXPECT_GT(cut, 600);
  EXPECT_GT(padding, 600);
}

// Where nothing says which tokens are placeholders, whole samples are packed, and no other.
TEST(Prepare, WithoutTokenTypesPacksRandomSamplesThatFit) {
  int fit = 0;
  for (unsigned seed = 0; seed < 600; ++seed) {
    std::mt19937 random(seed);
    const RandomSample sample = SampleMaker(random, 1000).Make(/*with_types=*/false);
    const int64_t tokens = static_cast<int64_t>(sample.tokens.size());
    const bool is_text = NaiveKind(sample, sample.tokens.size()) == "text";
    const PrepareOptions options = With(1 + static_cast<int64_t>(random() % 30), 2);
    if (tokens > options.seq_len && !is_text) {
      EXPECT_THROW(Prepare({sample.sample}, options), c10::ValueError) << "seed " << seed;
      continue;
    }
    ++fit;

    const Prepared prepared = Prepare({sample.sample}, options);

    const int64_t kept = std::min(tokens, options.seq_len);
    for (const auto& batches : prepared.batches) {
      const size_t copied = is_text && batches.at(0).padding ? 1 : static_cast<size_t>(kept);
      EXPECT_TRUE(Holds(batches.at(0), {{&sample, copied}})) << "seed " << seed;
    }
  }
  EXPECT_GT(fit, 200);
}

}  // namespace
}  // namespace lockstep::batching
