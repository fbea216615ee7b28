#include "base/nearest.h"

#include <cstddef>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace lockstep::base {
namespace {

TEST(Nearest, HeaderExample) {
  EXPECT_EQ(Nearest("--nprocs", {"--nproc", "--set"}), "--nproc");
  EXPECT_EQ(Nearest("--verbose", {"--nproc", "--set"}), "");
}

TEST(Nearest, ReturnsTheWordWithTheFewestEdits) {
  const std::vector<std::string> known = {"timeout", "time", "run_dir", "_time"};
  const struct {
    const char* word;
    const char* nearest;
  } kCases[] = {
      {"tiem", "time"},         // neighbours swapped
      {"timeouts", "timeout"},  // one letter too many
      {"run_dri", "run_dir"},  {"tme", "time"},   {"", ""},
      {"something", ""},       {"_tim", "_time"},  // an internal name only for a word that begins
                                                   // like one
  };
  for (const auto& c : kCases) EXPECT_EQ(Nearest(c.word, known), c.nearest) << c.word;
  EXPECT_EQ(Nearest("word", {}), "");
}

TEST(EditDistance, CountsEdits) {
  const struct {
    const char *a, *b;
    size_t edits;
  } kCases[] = {
      {"", "", 0},       {"abc", "abc", 0},      {"abc", "", 3},          {"abc", "axc", 1},
      {"abc", "acb", 1}, {"images", "image", 1}, {"labels", "label_s", 1}};
  for (const auto& c : kCases) {
    EXPECT_EQ(EditDistance(c.a, c.b), c.edits) << c.a << " " << c.b;
    EXPECT_EQ(EditDistance(c.b, c.a), c.edits) << c.b << " " << c.a;
  }
}

TEST(Nearest, OfEquallyNearWordsTheOneThatBeginsAlikeWins) {
  EXPECT_EQ(Nearest("abx", {"xbx", "abc"}), "abc");
  EXPECT_EQ(Nearest("abx", {"abc", "xbx"}), "abc");
}

}  // namespace
}  // namespace lockstep::base
