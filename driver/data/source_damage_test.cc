// Files and folders that would give a data set with samples missing or samples twice.

#include <stdlib.h>
#include <sys/stat.h>
#include <zlib.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "driver/data/parquet/row.h"
#include "driver/data/sample_index.h"
#include "driver/data/source.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/mutation.h"

namespace lockstep::data {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class SourceDamageTest : public ::testing::Test {
 protected:
  SourceDamageTest() {
    std::string pattern = absl::StrCat(::testing::TempDir(), "/source_damage_XXXXXX");
    folder_ = mkdtemp(pattern.data());
  }
  ~SourceDamageTest() override { fs::remove_all(folder_); }

  std::string Path(const std::string& name) const { return absl::StrCat(folder_, "/", name); }

  std::string Write(const std::string& name, const std::string& content) const {
    fs::create_directories(fs::path(Path(name)).parent_path());
    std::ofstream(Path(name), std::ios::binary) << content;
    return Path(name);
  }

  // The bytes of a gzip file.
  std::string Gzip(const std::string& content) const {
    gzFile file = gzopen(Path("member").c_str(), "wb");
    gzwrite(file, content.data(), static_cast<unsigned>(content.size()));
    gzclose(file);
    std::ifstream written(Path("member"), std::ios::binary);
    return {std::istreambuf_iterator<char>(written), {}};
  }

  // Every sample's text, or the error in their place.
  std::vector<std::string> Texts(const std::string& path) const {
    const auto source = Source::Open(
        {path}, {.format = "", .cache_folder = Path("cache"), .load_unpack_parquet = [] {
                   return absl::StatusOr<UnpackParquetFunction>(
                       absl::UnimplementedError("there is no library"));
                 }});
    if (!source.ok()) return {std::string(source.status().message())};
    std::vector<std::string> texts;
    for (int64_t i = 0; i < source->size(); ++i) texts.emplace_back(source->Read(i)->text);
    return texts;
  }

  std::string folder_;
};

TEST_F(SourceDamageTest, ADamagedLaterMemberOfAGzipFileIsAnErrorAndNoEnd) {
  const std::string one = Gzip("1\n2\n");
  std::string bytes = one + Gzip("3\n4\n");
  EXPECT_THAT(Texts(Write("good.jsonl.gz", bytes)), ElementsAre("1", "2", "3", "4"));
  bytes[one.size()] = '\0';
  for (const std::string name : {"a.jsonl.gz", "a.tar.gz"}) {
    EXPECT_THAT(Texts(Write(name, bytes)), ElementsAre(HasSubstr(name))) << name;
    EXPECT_THAT(Texts(Path(name)), ElementsAre(HasSubstr(absl::StrCat("byte ", one.size()))));
  }
}

TEST_F(SourceDamageTest, ATarArchiveThatIsCutShortIsAnError) {
  Write("1.txt", "one");
  ASSERT_EQ(std::system(absl::StrCat("cd ", folder_, " && tar -cf whole.tar 1.txt").c_str()), 0);
  EXPECT_THAT(Texts(Path("whole.tar")), ElementsAre(""));  // its text is in the sample's members
  fs::resize_file(Path("whole.tar"), 1024);
  ASSERT_EQ(std::system(absl::StrCat("gzip -k ", Path("whole.tar")).c_str()), 0);
  for (const std::string path : {"whole.tar", "whole.tar.gz"})
    EXPECT_THAT(Texts(Path(path)), ElementsAre(HasSubstr(path + ": the archive is cut short")));
  EXPECT_THAT(Texts(Write("empty.tar", "")),
              ElementsAre(HasSubstr("empty.tar: the archive is cut short")));
}

TEST_F(SourceDamageTest, AFolderThatLinksBackToItselfIsAnError) {
  Write("a/sub/1.jsonl", "1");
  Write("b/2.jsonl", "2");
  fs::create_directory_symlink(Path("b"), Path("a/b"));
  EXPECT_THAT(Texts(Path("a")), ElementsAre("2", "1"));
  fs::create_directory_symlink(Path("a"), Path("b/a"));
  EXPECT_THAT(Texts(Path("a")), ElementsAre(HasSubstr("a/b/a leads back to")));
  Write("c/3.jsonl", "3");
  fs::create_directory_symlink(".", Path("c/loop"));
  EXPECT_THAT(Texts(Path("c")), ElementsAre(HasSubstr("c/loop leads back to")));
  fs::create_directory_symlink(Path("c"), Path("d"));
  EXPECT_THAT(Texts(Path("d")), ElementsAre(HasSubstr("d/loop leads back to")));
}

TEST_F(SourceDamageTest, APipeIsAnErrorThatNamesIt) {
  Write("p/1.jsonl", "1");
  ASSERT_EQ(mkfifo(Path("p/2.jsonl").c_str(), 0600), 0);
  for (const char* path : {"p", "p/2.jsonl"})
    EXPECT_THAT(Texts(Path(path)), ElementsAre(HasSubstr("p/2.jsonl: it is not a regular file")));
}

// Memory of just the size of the bytes: AddressSanitizer sees a byte read behind them.
TEST(FindSamples, ReadsMutatedBytesToTheirEndOnly) {
  std::mt19937_64 random = tests::FuzzGenerator();
  std::string rows;
  for (const char* row : {"one", "", "three"}) {
    AppendSize(std::string(row).size(), &rows);
    rows += row;
  }
  for (int i = 0; i < 1000; ++i) {
    for (const auto& [layout, good] :
         {std::pair(Layout::kRows, rows), std::pair(Layout::kLines, std::string("a\n\r\n b\n"))}) {
      const std::string bad = tests::Mutate(good, good.size(), random);
      const std::vector<char> exact(bad.begin(), bad.end());
      const auto found = FindSamples({exact.data(), exact.size()}, layout);
      if (!found.ok()) continue;
      for (const uint64_t begin : found->begins) EXPECT_LT(begin, bad.size());
    }
  }
}

}  // namespace
}  // namespace lockstep::data
