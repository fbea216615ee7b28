#include "driver/images/ppm.h"

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::images {
namespace {

using ::testing::HasSubstr;

TEST(PpmTest, EachFrameHasItsOwnSize) {
  const std::string bytes =
      "P6\n2 1\n255\nabcdef"
      "P6\n1 3\n255\nP6\n123456";

  const absl::StatusOr<std::vector<PpmFrame>> frames = FindPpmFrames(bytes);

  ASSERT_TRUE(frames.ok()) << frames.status();
  ASSERT_EQ(frames->size(), 2);
  EXPECT_EQ((*frames)[0].width, 2);
  EXPECT_EQ((*frames)[0].height, 1);
  EXPECT_EQ(bytes.substr((*frames)[0].begin, 6), "abcdef");
  EXPECT_EQ((*frames)[1].width, 1);
  EXPECT_EQ((*frames)[1].height, 3);
  EXPECT_EQ(bytes.substr((*frames)[1].begin), "P6\n123456");
  EXPECT_TRUE(FindPpmFrames("")->empty());
}

TEST(PpmTest, WhatIsNoFrameIsNamed) {
  for (const char* bytes :
       {"P", "P5\n1 1\n255\nabc", "P6\n0 1\n255\n", "P6\n1 1\n65535\nabc", "P6\n1\n1\n255\nabc",
        "P6\n9999999999999999999 1\n255\nabc", "P6\n1 1"}) {
    EXPECT_THAT(FindPpmFrames(bytes).status().message(),
                HasSubstr("frame 0 does not begin as an 8-bit PPM file"))
        << bytes;
  }
  EXPECT_THAT(FindPpmFrames("P6\n1 1\n255\nabcP6\n1 1\n255\nab").status().message(),
              HasSubstr("frame 1 has 2 of 3 bytes of pixels"));
}

}  // namespace
}  // namespace lockstep::images
