#include "driver/network/printable.h"

#include <string>

#include "gtest/gtest.h"

namespace lockstep::driver {
namespace {

TEST(Printable, EscapesWhatATerminalWouldExecute) {
  const struct {
    std::string text;
    std::string printed;
  } kCases[] = {
      {"", ""},
      {"rank 1: train.lua:3: no\n\ttraceback", "rank 1: train.lua:3: no\n\ttraceback"},
      {"\x1b[2Jgone", "\\x1b[2Jgone"},
      {"\x1b]0;title\x07", "\\x1b]0;title\\x07"},
      {"over\rwritten\b\x7f", "over\\x0dwritten\\x08\\x7f"},
      {std::string("a\0b", 3), "a\\x00b"},
      {"\xc2\x9b"
       "2J",
       "\\xc2\\x9b"
       "2J"},  // CSI as a C1 character
      {"\x9b"
       "2J",
       "\\x9b"
       "2J"},  // and as a byte
      {"größer 学习 😀", "größer 学习 😀"},
      {"cut \xe5\xad", "cut \\xe5\\xad"},
      {"long \xc0\xaf", "long \\xc0\\xaf"},
      {"surrogate \xed\xa0\x80", "surrogate \\xed\\xa0\\x80"},
      {"beyond \xf4\x90\x80\x80", "beyond \\xf4\\x90\\x80\\x80"},
  };
  for (const auto& c : kCases) {
    EXPECT_EQ(Printable(c.text), c.printed);
    EXPECT_EQ(Printable(c.printed), c.printed);
  }
}

}  // namespace
}  // namespace lockstep::driver
