#include "sharding/fully_shard/turns.h"

#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sharding/testing/socket_ranks.h"
#include "sharding/testing/thread_collective.h"

namespace lockstep::sharding {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

const std::vector<std::string> kUnits = {"", "vision", "layers.0", "layers.1"};

// The turns of one rank, or the reason why it stopped.
struct Outcome {
  std::vector<Turn> done;
  std::string error;
};

// Each rank does its own list of turns, on a thread.
std::vector<Outcome> RunRanks(const std::vector<std::vector<Turn>>& lists, bool joins) {
  std::vector<Outcome> outcomes(lists.size());
  RunAsThreads(static_cast<int>(lists.size()), [&](Collective& collective) {
    const auto rank = static_cast<size_t>(collective.rank());
    Turns turns(&collective, kUnits, joins);
    for (const Turn& next : lists[rank]) {
      for (;;) {
        const auto turn = turns.Agree(next, [&] { return absl::StrCat("train.lua:4", rank); });
        if (!turn.ok()) {
          outcomes[rank].error = std::string(turn.status().message());
          return;
        }
        outcomes[rank].done.push_back(*turn);
        if (*turn == next) break;
      }
    }
  });
  return outcomes;
}

Turn Gather(int unit, Phase phase = Phase::kForward) {
  return {.pass = 7, .phase = phase, .action = Action::kGather, .unit = unit};
}
Turn Finish(Phase phase) { return {.pass = 7, .phase = phase, .action = Action::kFinish}; }

TEST(Turns, HeaderExample) {
  const std::vector<Outcome> ranks = RunRanks({{Gather(1)}, {Gather(2)}}, /*joins=*/false);

  EXPECT_EQ(ranks[0].error, ranks[1].error);
  EXPECT_THAT(ranks[0].error,
              HasSubstr("fully_shard: the ranks differ in pass 7:\n"
                        "  rank 0: gathers \"vision\" for forward (train.lua:40)\n"
                        "  rank 1: gathers \"layers.0\" for forward (train.lua:41)\n"));
}

TEST(Turns, RanksThatAgreeGoOn) {
  const std::vector<Turn> turns = {Gather(0), Gather(2), Finish(Phase::kForward)};

  for (const Outcome& rank : RunRanks({turns, turns, turns}, /*joins=*/false)) {
    EXPECT_EQ(rank.done, turns);
    EXPECT_EQ(rank.error, "");
  }
}

TEST(Turns, TheEndOfAPassIsComparedToo) {
  const std::vector<Outcome> ranks =
      RunRanks({{Gather(3)}, {Finish(Phase::kForward)}}, /*joins=*/false);

  EXPECT_THAT(ranks[1].error, HasSubstr("rank 0: gathers \"layers.1\" for forward (train.lua:40)"));
  EXPECT_THAT(ranks[1].error, HasSubstr("rank 1: ends forward (train.lua:41)"));
}

// Both ranks have gathered the unit ahead, and have no collective of it left to differ in.
TEST(Turns, AUnitThatOneRankDoesNotUseIsNamedAtTheNextTurn) {
  for (const bool joins : {false, true}) {
    RunAsThreads(2, [&](Collective& collective) {
      Turns turns(&collective, kUnits, joins);
      const auto place = [] { return std::string("train.lua:4"); };
      for (int pass = 0; pass < 2; ++pass) {
        turns.BeginPass();
        if (collective.rank() == 0 && pass == 1) turns.Use(1);
        for (const int unit : {2, 3, 2, 3, 2}) turns.Use(unit);
        const auto turn = turns.Agree(Finish(Phase::kForward), place);

        if (pass == 0 || joins) {
          EXPECT_TRUE(turn.ok()) << turn.status();
        } else {
          EXPECT_THAT(
              std::string(turn.status().message()),
              HasSubstr("\n  rank 0: ends forward (train.lua:4), after ..., \"layers.1\", "
                        "\"layers.0\", \"layers.1\", \"layers.0\"\n  rank 1: ends forward "));
        }
      }
    });
  }
}

// Where some ranks join, only those that name the same turn have terms to compare.
TEST(Turns, DifferentTermsOfTheSameTurnAreShownAndThoseOfAnotherTurnAreNot) {
  for (const bool joins : {false, true}) {
    RunAsThreads(2, [&](Collective& collective) {
      Turns turns(&collective, kUnits, joins);
      const bool first = collective.rank() == 0;
      const auto place = [] { return std::string(); };
      const Terms terms = {first ? uint64_t{1} : uint64_t{2},
                           [&] { return absl::StrCat("same\n", first ? "trained" : "frozen"); }};
      if (joins) {
        const auto joined = turns.Agree(Gather(first ? 1 : 2), {}, place, terms);
        EXPECT_TRUE(joined.ok()) << joined.status();
      }
      const auto turn = turns.Agree(Finish(Phase::kForward), {}, place, terms);

      EXPECT_EQ(std::string(turn.status().message()),
                "fully_shard: the ranks differ in pass 7, where each ends forward, in 1 places:\n"
                "  rank 0: trained\n  rank 1: frozen");
    });
  }
}

// Ranks may differ in flags. Each then knows that they do, and gets those of all ranks together.
TEST(Turns, FlagsThatDifferMakeATurnNotUnanimous) {
  RunAsThreads(3, [](Collective& collective) {
    Turns turns(&collective, kUnits, /*joins=*/false);
    const auto place = [] { return std::string(); };
    const auto agree = [&](const std::string& flags) {
      Terms terms;
      terms.flags = flags;
      return turns.Agree(Gather(1), {}, place, terms);
    };
    const bool first = collective.rank() == 0;
    const std::string own = first ? std::string("\1\0\0", 3) : std::string("\0\0\1", 3);

    const auto same = agree(std::string("\0\1\1", 3));
    const auto different = agree(own);
    const auto any = turns.AnyOf(own);

    ASSERT_TRUE(same.ok() && different.ok() && any.ok());
    EXPECT_TRUE(same->is_unanimous);
    EXPECT_FALSE(different->is_unanimous);
    EXPECT_TRUE(different->turn == Gather(1));
    EXPECT_EQ(*any, std::string("\1\0\1", 3));
  });
}

TEST(Turns, AfterAnErrorEveryTurnFailsAlike) {
  RunAsThreads(2, [](Collective& collective) {
    Turns turns(&collective, kUnits, /*joins=*/false);
    const auto place = [] { return std::string(); };
    const auto first = turns.Agree(Gather(1 + collective.rank()), place);
    const auto second = turns.Agree(Gather(1), place);

    EXPECT_FALSE(first.ok());
    EXPECT_EQ(first.status(), second.status());
  });
}

// Random subsets of the units on each rank: with joins every rank does its own turns, all ranks do
// the same sequence, and no rank waits for ever.
TEST(Turns, JoiningRanksDoTheSameSequenceForRandomSkips) {
  const unsigned seed = 4711;
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  for (int trial = 0; trial < 200; ++trial) {
    const int size = 2 + trial % 4;
    std::vector<std::vector<Turn>> lists(static_cast<size_t>(size));
    for (auto& list : lists) {
      for (int64_t pass = 1; pass <= 2; ++pass) {
        std::vector<int> used;
        for (int unit = 0; unit < 4; ++unit) {
          if (unit == 0 || random() % 2 == 0) used.push_back(unit);
        }
        for (const int unit : used) list.push_back({pass, Phase::kForward, Action::kGather, unit});
        list.push_back({pass, Phase::kForward, Action::kFinish, 0});
        for (auto unit = used.rbegin(); unit != used.rend(); ++unit) {
          list.push_back({pass, Phase::kBackward, Action::kGather, *unit});
          list.push_back({pass, Phase::kBackward, Action::kReduce, *unit});
        }
        list.push_back({pass, Phase::kBackward, Action::kFinish, 0});
      }
    }

    const std::vector<Outcome> ranks = RunRanks(lists, /*joins=*/true);

    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      ASSERT_EQ(ranks[rank].error, "") << "trial " << trial;
      ASSERT_EQ(ranks[rank].done, ranks[0].done) << "trial " << trial;
    }
  }
}

// Rank 1 wants a later unit at first. Parts of the earlier one come once all ranks name it.
TEST(Turns, PartsComeWithATurnThatAllRanksName) {
  RunSocketRanks(2, [](int rank, CollectivePointer collective) {
    Turns turns(collective.get(), kUnits, /*joins=*/true);
    const auto other = static_cast<size_t>(1 - rank);
    const auto agree = [&](const Turn& next, size_t size) {
      const std::string own(size, static_cast<char>('a' + rank));
      std::string came(size, ' ');
      Collective::Parts parts{std::vector<std::vector<absl::Span<const char>>>(2),
                              std::vector<std::vector<absl::Span<char>>>(2)};
      parts.to[other] = {absl::MakeConstSpan(own)};
      parts.from[other] = {absl::MakeSpan(came)};
      const auto agreed = turns.Agree(next, parts, [] { return std::string(); });
      EXPECT_TRUE(agreed.ok()) << agreed.status();
      return std::make_pair(*agreed, came);
    };

    const auto first = agree(Gather(rank == 0 ? 1 : 2), rank == 0 ? 5 : 70'000);
    EXPECT_EQ(first.first.turn, Gather(1));
    EXPECT_FALSE(first.first.is_unanimous);

    const auto second = agree(Gather(2), 70'000);
    EXPECT_EQ(second.first.turn, Gather(2));
    EXPECT_TRUE(second.first.is_unanimous);
    EXPECT_TRUE(second.second == std::string(70'000, rank == 0 ? 'b' : 'a'));
  });
}

// The comparison itself fails: a text of a disagreement follows the messages with parts.
TEST(Turns, RanksThatDifferAreNamedWhereTheirPartsDiffer) {
  RunSocketRanks(2, [](int rank, CollectivePointer collective) {
    Turns turns(collective.get(), kUnits, /*joins=*/false);
    const auto other = static_cast<size_t>(1 - rank);
    std::string own(100'000, 'a'), came = own;
    Collective::Parts parts;
    if (rank == 0) {
      parts = {std::vector<std::vector<absl::Span<const char>>>(2),
               std::vector<std::vector<absl::Span<char>>>(2)};
      parts.to[other] = {absl::MakeConstSpan(own)};
      parts.from[other] = {absl::MakeSpan(came)};
    }
    const auto agreed = turns.Agree(rank == 0 ? Gather(1) : Finish(Phase::kForward), parts,
                                    [&] { return absl::StrCat("train.lua:4", rank); });

    EXPECT_THAT(std::string(agreed.status().message()),
                AllOf(HasSubstr("rank 0: gathers \"vision\" for forward (train.lua:40)\n"),
                      HasSubstr("rank 1: ends forward (train.lua:41)\n")));
  });
}

// Joining helps a rank that skips a unit. It does not help one that clips while another rank starts
// the next pass.
TEST(Turns, AdviceToJoinIsGivenOnlyWhereItHelps) {
  const Turn norm = {.pass = 7, .phase = Phase::kUpdate, .action = Action::kNorm};
  const Turn values = {.pass = 7, .phase = Phase::kUpdate, .action = Action::kExport, .unit = 1};
  const auto error = [](const Turn& one, const Turn& other, bool joins) {
    return RunRanks({{one}, {other}}, joins)[0].error;
  };

  EXPECT_THAT(
      error(Gather(1), Gather(2), false),
      HasSubstr("Give each rank a micro-batch of the same kind, or pass skipped = \"join\""));
  for (const auto& [one, other] :
       {std::pair{norm, Turn{.pass = 8}}, std::pair{values, Gather(2)}}) {
    EXPECT_THAT(
        error(one, other, false),
        AllOf(HasSubstr("Every rank calls the same functions of the model in the same order"),
              Not(HasSubstr("join"))));
  }
  EXPECT_THAT(error(norm, {.pass = 8}, true), Not(HasSubstr("micro-batch")));
}

TEST(Turns, NobodyJoinsAnUpdate) {
  const Turn norm = {.pass = 7, .phase = Phase::kUpdate, .action = Action::kNorm};
  const Turn later = {.pass = 8};

  const std::vector<Outcome> ranks = RunRanks({{norm}, {later}}, /*joins=*/true);

  EXPECT_THAT(ranks[0].error, HasSubstr("rank 0: clips gradients"));
  EXPECT_EQ(ranks[0].error, ranks[1].error);
}

}  // namespace
}  // namespace lockstep::sharding
