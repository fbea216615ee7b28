#include "sharding/agreement/guard.h"

#include <mutex>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sharding/testing/thread_collective.h"

namespace lockstep::sharding {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// Notes of ranks that are threads.
class SharedNotes {
 public:
  explicit SharedNotes(int size) : notes_(static_cast<size_t>(size)) {}

  class OfRank : public Notes {
   public:
    OfRank(SharedNotes* shared, int rank) : shared_(shared), rank_(rank) {}
    void Write(const std::string& note) override {
      const std::lock_guard<std::mutex> lock(shared_->mutex_);
      shared_->notes_[static_cast<size_t>(rank_)] = note;
    }
    std::string Read(int rank) override {
      const std::lock_guard<std::mutex> lock(shared_->mutex_);
      return shared_->notes_[static_cast<size_t>(rank)];
    }

   private:
    SharedNotes* shared_;
    int rank_;
  };

 private:
  std::mutex mutex_;
  std::vector<std::string> notes_;
};

// Returns the result of each rank's body.
std::vector<absl::Status> RunGuards(int size,
                                    const std::function<absl::Status(int rank, Guard& guard)>& body,
                                    double timeout_s = 5) {
  SharedNotes shared(size);
  std::vector<absl::Status> results(static_cast<size_t>(size));
  RunAsThreads(
      size,
      [&](Collective& collective) {
        SharedNotes::OfRank notes(&shared, collective.rank());
        Guard guard(&collective, &notes, timeout_s);
        results[static_cast<size_t>(collective.rank())] = body(collective.rank(), guard);
      },
      timeout_s);
  return results;
}

TEST(Guard, HeaderExample) {
  const std::vector<absl::Status> results = RunGuards(2, [](int rank, Guard& guard) {
    return guard.Check("step 7",
                       rank == 0 ? "kind=image samples=[3, 9]" : "kind=text samples=[4, 8]",
                       "train.cc:41");
  });

  const std::string expected =
      "guard: the ranks disagree at \"step 7\":\n"
      "  rank 0: kind=image samples=[3, 9] (train.cc:41)\n"
      "  rank 1: kind=text samples=[4, 8] (train.cc:41)";
  for (const absl::Status& result : results) {
    EXPECT_EQ(result.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(result.message(), expected);
  }
}

TEST(Guard, RanksThatAgreePass) {
  const auto results = RunGuards(4, [](int, Guard& guard) {
    for (int step = 0; step < 100; ++step) {
      const absl::Status status = guard.Check("step", std::to_string(step));
      if (!status.ok()) return status;
    }
    return guard.checks() == 100 ? absl::OkStatus() : absl::InternalError("miscounted");
  });
  for (const absl::Status& result : results) EXPECT_TRUE(result.ok()) << result;
}

TEST(Guard, ChecksGoOnAfterADisagreement) {
  const auto results = RunGuards(3, [](int rank, Guard& guard) {
    if (guard.Check("first", std::to_string(rank)).ok()) return absl::InternalError("not seen");
    return guard.Check("second", "same");
  });
  for (const absl::Status& result : results) EXPECT_TRUE(result.ok()) << result;
}

TEST(Guard, DifferentChecksAreNamedForEachRank) {
  const auto results = RunGuards(
      2, [](int rank, Guard& guard) { return guard.Check(rank == 0 ? "train" : "validate", "x"); });
  for (const absl::Status& result : results) {
    EXPECT_THAT(std::string(result.message()),
                AllOf(HasSubstr("rank 0: \"train\""), HasSubstr("rank 1: \"validate\"")));
  }
}

TEST(Guard, LongFingerprintsShowWhereTheyDiffer) {
  const auto results = RunGuards(2, [](int rank, Guard& guard) {
    return guard.Check("samples", std::string(5000, 'a') + (rank == 0 ? "left" : "right") +
                                      std::string(5000, 'z'));
  });
  EXPECT_THAT(std::string(results[0].message()),
              AllOf(HasSubstr("aaaleftzzz"), HasSubstr("aaarightzzz")));
  EXPECT_LT(results[0].message().size(), 700u);
}

TEST(Guard, ARankThatStaysAwayIsNamedWithWhatItLastPassed) {
  const auto results = RunGuards(
      3,
      [](int rank, Guard& guard) {
        const absl::Status first = guard.Check("step 0", "", "train.lua:9");
        if (!first.ok() || rank == 1) return first;
        return guard.Check("step 1", "", "train.lua:9");
      },
      0.2);

  EXPECT_TRUE(results[1].ok());
  for (const size_t rank : {0u, 2u}) {
    EXPECT_EQ(results[rank].code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_EQ(results[rank].message(),
              "guard: not all ranks came to \"step 1\", check number 2, within 0.2 s:\n"
              "  rank 1 last passed \"step 0\" (train.lua:9), its check number 1");
  }
}

TEST(Guard, ALabelMayHoldLines) {
  const std::vector<absl::Status> results = RunGuards(
      2,
      [](int rank, Guard& guard) {
        const absl::Status first = guard.Check("step\n0", "", "train.lua:9");
        return !first.ok() || rank == 1 ? first : guard.Check("step\n1", "");
      },
      0.2);

  EXPECT_THAT(results[0].message(),
              HasSubstr("\n  rank 1 last passed \"step\n0\" (train.lua:9), its"));
}

TEST(Guard, ARankThatNeverCameIsNamed) {
  const auto results = RunGuards(
      2,
      [](int rank, Guard& guard) {
        return rank == 1 ? absl::OkStatus() : guard.Check("step 0", "");
      },
      0.2);
  EXPECT_THAT(std::string(results[0].message()), HasSubstr("rank 1 has passed no check yet"));
}

TEST(Guard, AfterAnAbsenceNothingIsAskedAgain) {
  const auto results = RunGuards(
      2,
      [](int rank, Guard& guard) {
        if (rank == 1) return absl::OkStatus();
        const absl::Status first = guard.Check("step 0", "");
        const absl::Status second = guard.Check("step 1", "");
        return first == second ? first : absl::InternalError("asked again");
      },
      0.2);
  EXPECT_EQ(results[0].code(), absl::StatusCode::kDeadlineExceeded);
}

TEST(Guard, RanksAreNamedAsTheGroupNamesThem) {
  SharedNotes shared(2);
  std::vector<std::string> messages(2);
  RunAsThreads(2, [&](Collective& collective) {
    SharedNotes::OfRank notes(&shared, collective.rank());
    Guard guard(&collective, &notes, 5, {4, 7});
    messages[static_cast<size_t>(collective.rank())] =
        std::string(guard.Check("step", std::to_string(collective.rank())).message());
  });
  EXPECT_THAT(messages[0],
              AllOf(HasSubstr("rank 4: 0"), HasSubstr("rank 7: 1"), Not(HasSubstr("rank 0"))));
}

}  // namespace
}  // namespace lockstep::sharding
