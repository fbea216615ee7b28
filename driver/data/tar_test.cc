#include "driver/data/tar.h"

#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr size_t kBlock = 512;

std::string Padded(std::string content) {
  content.resize((content.size() + kBlock - 1) / kBlock * kBlock);
  return content;
}

// One header, as the format says it.
std::string Header(const std::string& name, size_t size, char type = '0',
                   const std::string& prefix = "") {
  std::string header(kBlock, '\0');
  header.replace(0, name.size(), name);
  char digits[13];
  std::snprintf(digits, sizeof(digits), "%011zo", size);
  header.replace(124, 11, digits, 11);
  header[156] = type;
  header.replace(257, 8,
                 std::string("ustar\0"
                             "00",
                             8));
  header.replace(345, prefix.size(), prefix);
  header.replace(148, 8, "        ");
  unsigned sum = 0;
  for (const char c : header) sum += static_cast<unsigned char>(c);
  std::snprintf(digits, sizeof(digits), "%06o", sum);
  header.replace(148, 7, std::string(digits, 6) + '\0');
  return header;
}

std::string Member(const std::string& name, const std::string& content, char type = '0',
                   const std::string& prefix = "") {
  return Header(name, content.size(), type, prefix) + Padded(content);
}

const std::string& End() {
  static const auto* const end = new std::string(2 * kBlock, '\0');
  return *end;
}

// "name=content" of each file; the error, if there is one, comes last.
std::vector<std::string> Read(const std::string& archive) {
  std::vector<std::string> files;
  for (uint64_t at = 0;;) {
    const auto member = NextTarMember(archive, at);
    if (!member.ok()) {
      files.emplace_back(member.status().message());
      return files;
    }
    if (!member->has_value()) return files;
    files.push_back(
        absl::StrCat((*member)->name, "=", archive.substr((*member)->begin, (*member)->size)));
    at = (*member)->next;
  }
}

TEST(Tar, ReadsFilesInTheirOrder) {
  EXPECT_THAT(Read(Member("a.txt", "one") + Member("empty", "") + Member("b.txt", "two") + End()),
              ElementsAre("a.txt=one", "empty=", "b.txt=two"));
  EXPECT_THAT(Read(End()), ElementsAre());
  EXPECT_THAT(Read(Member("one end mark", "x") + std::string(kBlock, '\0')),
              ElementsAre("one end mark=x"));
}

TEST(Tar, PassesOverFoldersAndGlobalHeaders) {
  EXPECT_THAT(Read(Member("d/", "", '5') + Member("g", "19 comment=nothing\n", 'g') +
                   Member("d/a", "1") + End()),
              ElementsAre("d/a=1"));
}

TEST(Tar, ReadsLongNames) {
  const std::string name(150, 'n');
  EXPECT_THAT(Read(Member("././@LongLink", name + '\0', 'L') + Member("nnn", "1") + End()),
              ElementsAre(name + "=1"));
  const std::string record = absl::StrCat("160 path=", name, "\n");
  ASSERT_EQ(record.size(), 160u);
  EXPECT_THAT(Read(Member("PaxHeader", record, 'x') + Member("nnn", "1") + End()),
              ElementsAre(name + "=1"));
  EXPECT_THAT(Read(Member("base", "1", '0', "in/front") + End()), ElementsAre("in/front/base=1"));
}

TEST(Tar, ABrokenArchiveIsAnErrorThatNamesThePlace) {
  const std::string whole = Member("a", std::string(600, 'x')) + Member("b", "y");
  for (const size_t size : {size_t{1}, kBlock - 1, kBlock, kBlock + 599}) {
    EXPECT_THAT(Read(whole.substr(0, size)).back(), HasSubstr("cut short")) << size;
  }
  // Between members, and without the padding of the last block.
  for (const size_t size : {size_t{0}, 3 * kBlock, 5 * kBlock, 4 * kBlock + 1})
    EXPECT_THAT(Read(whole.substr(0, size)).back(), HasSubstr("cut short")) << size;
  EXPECT_THAT(Read(Member("a", "x") + std::string(kBlock, '\0') + Member("b", "y")).back(),
              HasSubstr("a lone block of zeros (at byte 1024)"));
  std::string wrong = whole;
  wrong[3 * kBlock] = 'c';
  EXPECT_THAT(Read(wrong).back(), HasSubstr("expected a tar header (at byte 1536)"));
  EXPECT_THAT(Read(Member("l", "", '2')).back(), HasSubstr("l is a link"));
  EXPECT_THAT(Read(Member("p", "900 path=x\n", 'x') + Member("a", "")).back(),
              HasSubstr("pax header"));
}

TEST(Tar, EveryCutAndEveryChangedByteOfAnArchiveIsReadWithoutACrash) {
  const std::string whole = Member("PaxHeader", "14 path=abcde\n", 'x') + Member("a", "1") +
                            Member("././@LongLink", "long", 'L') + Member("b", "22") + End();
  for (size_t size = 0; size <= whole.size(); ++size) Read(whole.substr(0, size));
  for (size_t i = 0; i < whole.size(); ++i) {
    std::string changed = whole;
    changed[i] = static_cast<char>(changed[i] ^ 0xff);
    Read(changed);
  }
}

TEST(Tar, SplitsNamesByTheirFirstDot) {
  const auto split = [](absl::string_view name) {
    const TarField field = SplitTarName(name);
    return absl::StrCat(field.stem, "|", field.field);
  };
  EXPECT_EQ(split("0001.jpg"), "0001|jpg");
  EXPECT_EQ(split("dir.v2/0001.seg.PNG"), "dir.v2/0001|seg.png");
  EXPECT_EQ(split("dir/README"), "dir/README|");
  EXPECT_EQ(split("dir/.DS_Store"), "|");
  EXPECT_EQ(split("._0001.jpg"), "|");
}

}  // namespace
}  // namespace lockstep::data
