#include "driver/files/event_file.h"

#include <limits>
#include <string>

#include "absl/strings/escaping.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::driver {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;

std::string Hex(const std::string& bytes) { return absl::BytesToHexString(bytes); }

TEST(EventFile, ChecksumsAreThoseOfRfc3720) {
  std::string ascending;
  for (int i = 0; i < 32; ++i) ascending.push_back(static_cast<char>(i));

  EXPECT_EQ(Crc32c(""), 0u);
  EXPECT_EQ(Crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(Crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(Crc32c(std::string(32, '\xff')), 0x62a8ab43u);
  EXPECT_EQ(Crc32c(ascending), 0x46dd794eu);
}

// TensorBoard 2.21's own RecordWriter and Event message write these bytes.
TEST(EventFile, ARecordOfScalarsIsByteForByteTensorBoards) {
  const std::string event =
      EncodeScalars(1234.5, 300, {{"loss", 0.25}, {"validation/accuracy", -1.5}});

  EXPECT_EQ(Hex(FrameRecord(event)),
            "3700000000000000e7e8ca590900000000004a934010ac022a290a0b0a046c6f7373150000803e0a1a0a13"
            "76616c69646174696f6e2f6163637572616379150000c0bfb9d8a5aa");
}

// The tensorboard wheel's Event message writes these bytes.
TEST(EventFile, ATextIsByteForByteTensorBoards) {
  EXPECT_EQ(Hex(EncodeText(1234.5, 300, "config", "{}")),
            "0900000000004a934010ac022a200a1e0a06636f6e66696742080807120042027b7d4a0a0a060a04746578"
            "742002");
}

TEST(EventFile, StepsAndTagsOfAnyLengthAreVarints) {
  const std::string event = EncodeScalars(0, int64_t{1} << 53, {{std::string(200, 'x'), 1}});

  EXPECT_THAT(Hex(event),
              HasSubstr("108080808080808010"));  // step: seven groups of 7 bits, then 16
  EXPECT_THAT(Hex(event),
              HasSubstr("2ad3010ad0010ac801"));  // summary of 211, value of 208, tag 200
  EXPECT_THAT(Hex(event), EndsWith("78150000803f"));
}

TEST(EventFile, NanAndInfinityAreWritten) {
  const double infinity = std::numeric_limits<double>::infinity();

  EXPECT_THAT(Hex(EncodeScalars(0, 0, {{"x", infinity}})), EndsWith("150000807f"));
  EXPECT_THAT(Hex(EncodeScalars(0, 0, {{"x", -infinity}})), EndsWith("15000080ff"));
  EXPECT_THAT(Hex(EncodeScalars(0, 0, {{"x", std::numeric_limits<double>::quiet_NaN()}})),
              EndsWith("150000c07f"));
}

TEST(EventFile, EachFileHasANameOfItsOwnThatTensorBoardLooksFor) {
  const EventFile first(::testing::TempDir());
  const EventFile second(::testing::TempDir());

  EXPECT_THAT(first.path(), HasSubstr("/events.out.tfevents."));
  EXPECT_NE(first.path(), second.path());
}

TEST(EventFile, AFolderThatIsNotThereIsNamed) {
  try {
    EventFile("/nowhere/at/all");
    FAIL() << "made a file in a folder that is not there";
  } catch (const std::runtime_error& error) {
    EXPECT_THAT(error.what(), HasSubstr("cannot open /nowhere/at/all/events.out.tfevents."));
    EXPECT_THAT(error.what(), EndsWith("No such file or directory"));
  }
}

}  // namespace
}  // namespace lockstep::driver
