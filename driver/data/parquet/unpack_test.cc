#include "driver/data/parquet/unpack.h"

#include <sys/resource.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "driver/data/parquet/row.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/mutation.h"

namespace lockstep::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::StartsWith;

std::string Fixture(const std::string& name) {
  return "driver/data/parquet/testdata/" + name + ".parquet";
}

std::string Bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

// Writes a row as text: {id=1 text=a}. Floats have a point.
struct Printer {
  std::string text = {};
  void Add(const std::string& part) { text += part + " "; }
  void Null() { Add("null"); }
  void Bool(bool value) { Add(value ? "true" : "false"); }
  void Number(double value, bool is_integer) {
    Add(is_integer ? std::to_string(static_cast<int64_t>(value)) : std::to_string(value));
  }
  void String(const std::string& value) { Add(value); }
  void Key(const std::string& name) { text += name + "="; }
  void StartObject() { text += "{"; }
  void EndObject() { Add("}"); }
  void StartArray() { text += "["; }
  void EndArray() { Add("]"); }
};

struct Unpacked {
  std::vector<std::string> rows = {};
  std::string problem = {};
};

Unpacked Unpack(const std::string& path, const std::vector<std::string>& columns = {}) {
  Unpacked unpacked;
  unpacked.problem = UnpackParquet(path, columns, [&](std::string_view row) {
    Printer printer;
    EXPECT_TRUE(ReadRow(row, printer));
    unpacked.rows.push_back(printer.text);
    return std::string();
  });
  return unpacked;
}

std::string WriteTemporary(const std::string& bytes) {
  const std::string path = ::testing::TempDir() + "/mutated.parquet";
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

TEST(UnpackTest, RowsOfAllGroupsComeInOrderWhateverTheCompression) {
  for (const char* compression : {"none", "snappy", "gzip", "zstd", "lz4", "brotli"}) {
    const Unpacked unpacked = Unpack(Fixture(std::string("groups_") + compression));

    EXPECT_EQ(unpacked.problem, "");
    ASSERT_THAT(unpacked.rows, SizeIs(25)) << compression;
    EXPECT_EQ(unpacked.rows[3], "{id=4 text=row 4 kind=even parts=[] } ");
    EXPECT_EQ(unpacked.rows[6], "{id=7 text=row 7 kind=odd parts=[0 1 2 ] } ");
    EXPECT_EQ(unpacked.rows[24], "{id=25 text=row 25 kind=odd parts=[0 ] } ");
  }
}

TEST(UnpackTest, OnlyTheColumnsThatAreNamedAreRead) {
  EXPECT_THAT(Unpack(Fixture("types"), {"price", "flag"}).rows,
              ElementsAre("{flag=true price=12.50 } ", "{flag=null price=null } ",
                          "{flag=false price=-0.01 } "));
  EXPECT_THAT(Unpack(Fixture("groups_zstd"), {"id", "txt"}).problem,
              HasSubstr("there is no column \"txt\"; the columns are \"id\", \"text\", \"kind\""));
}

// The file says that its writer held them as a view, a dictionary and large strings.
TEST(UnpackTest, TextIsReadHoweverTheWriterHeldIt) {
  const Unpacked unpacked = Unpack(Fixture("types"), {"view", "word", "large_text", "pair"});

  EXPECT_EQ(unpacked.problem, "");
  ASSERT_THAT(unpacked.rows, SizeIs(3));
  EXPECT_EQ(unpacked.rows[0],
            "{large_text=large view=a text of more than twelve bytes word=one of few "
            "pair=[1.000000 2.500000 ] } ");
}

TEST(UnpackTest, ATableWithoutRowsHasNone) {
  const Unpacked unpacked = Unpack(Fixture("zero_rows"));

  EXPECT_EQ(unpacked.problem, "");
  EXPECT_THAT(unpacked.rows, IsEmpty());
}

TEST(UnpackTest, ErrorsNameFileRowAndColumn) {
  EXPECT_THAT(Unpack("/nowhere/x.parquet").problem, StartsWith("/nowhere/x.parquet: "));
  EXPECT_THAT(Unpack(Fixture("inexact")).problem,
              HasSubstr("inexact.parquet: row 3, column \"id\": the integer 9007199254740993 is "
                        "beyond 2^53"));
  EXPECT_THAT(Unpack(Fixture("inexact"), {"text"}).rows, SizeIs(3));
  EXPECT_THAT(Unpack(Fixture("keys")).problem,
              HasSubstr("column \"names[]\": the keys of a map must be strings"));
}

// The pages of groups_none have checksums: a changed byte in a value is found.
TEST(UnpackTest, AChangedByteIsFoundAndItsGroupAndColumnAreNamed) {
  std::string bytes = Bytes(Fixture("groups_none"));
  const size_t at = bytes.find(std::string("\6\0\0\0row 10", 10));  // a value, no statistics
  ASSERT_NE(at, std::string::npos);
  bytes[at + 4] = 'R';

  const Unpacked unpacked = Unpack(WriteTemporary(bytes));

  EXPECT_THAT(unpacked.rows, SizeIs(8));
  EXPECT_THAT(unpacked.problem,
              HasSubstr("row group 3 of 7, rows 9 to 12, column \"text\": could not verify"));
}

TEST(UnpackTest, AnErrorOfTheCallerEndsTheReading) {
  int rows = 0;
  const std::string problem =
      UnpackParquet(Fixture("groups_gzip"), {}, [&](std::string_view /*row*/) {
        return ++rows == 6 ? std::string("the disk is full") : std::string();
      });

  EXPECT_EQ(problem, "the disk is full");
  EXPECT_EQ(rows, 6);
}

TEST(UnpackTest, FilesThatAreCutOffAreErrors) {
  const std::string bytes = Bytes(Fixture("groups_zstd"));
  for (size_t size = 0; size < bytes.size(); size += 61)
    EXPECT_NE(Unpack(WriteTemporary(bytes.substr(0, size))).problem, "") << size << " bytes";
}

// Bounds the memory that this process takes from now on. AddressSanitizer has reserved 20 TB
// before.
void BoundMemory(rlim_t bytes) {
  std::ifstream file("/proc/self/statm");
  rlim_t pages = 0;
  ASSERT_TRUE(file >> pages);
  const rlim_t most = pages * static_cast<rlim_t>(sysconf(_SC_PAGESIZE)) + bytes;
  const rlimit limit = {most, most};
  ASSERT_EQ(setrlimit(RLIMIT_AS, &limit), 0);
}

// Sizes that the bytes state may be anything: memory is bounded, so that they become errors.
TEST(UnpackTest, MutatedFilesAreReadOrRefused) {
  BoundMemory(rlim_t{4} << 30);
  std::mt19937_64 random = tests::FuzzGenerator();
  int refused = 0;
  for (int i = 0; i < 200; ++i) {
    for (const char* name : {"types", "groups_none", "groups_snappy"}) {
      const std::string good = Bytes(Fixture(name));
      const Unpacked unpacked = Unpack(WriteTemporary(tests::Mutate(good, good.size(), random)));
      refused += unpacked.problem.empty() ? 0 : 1;
    }
  }
  EXPECT_GT(refused, 100);
}

// --- Rows ----------------------------------------------------------------------------------------

TEST(RowTest, BytesThatAreNoRowAreRefused) {
  std::string row;
  RowWriter writer(&row);
  writer.Begin('{');
  writer.String("a");
  writer.Begin('[');
  writer.Number(1, true);
  writer.Null();
  writer.End(']');
  writer.End('}');
  Printer whole;
  EXPECT_TRUE(ReadRow(row, whole));
  EXPECT_EQ(whole.text, "{a=[1 null ] } ");

  for (size_t size = 0; size < row.size(); ++size) {
    Printer printer;
    EXPECT_FALSE(ReadRow(std::string_view(row).substr(0, size), printer)) << size;
  }
  for (const std::string& bad :
       {row + "n", std::string("]"), std::string("{]"), std::string("{nn}"), std::string("x"),
        std::string("i1"), "s" + std::string(8, '\xff')}) {
    Printer printer;
    EXPECT_FALSE(ReadRow(bad, printer)) << bad;
  }
}

}  // namespace
}  // namespace lockstep::data
