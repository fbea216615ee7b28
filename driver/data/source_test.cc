#include "driver/data/source.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zlib.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/mutation.h"

namespace lockstep::data {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class SourceTest : public ::testing::Test {
 protected:
  SourceTest() {
    std::string pattern = absl::StrCat(::testing::TempDir(), "/source_XXXXXX");
    folder_ = mkdtemp(pattern.data());
  }
  ~SourceTest() override { fs::remove_all(folder_); }

  std::string Path(const std::string& name) const { return absl::StrCat(folder_, "/", name); }
  std::string Cache() const { return Path("cache"); }

  std::string Write(const std::string& name, const std::string& content) const {
    fs::create_directories(fs::path(Path(name)).parent_path());
    std::ofstream(Path(name), std::ios::binary) << content;
    return Path(name);
  }

  std::string WriteGzip(const std::string& name, const std::string& content) const {
    gzFile file = gzopen(Path(name).c_str(), "wb");
    gzwrite(file, content.data(), static_cast<unsigned>(content.size()));
    gzclose(file);
    return Path(name);
  }

  absl::StatusOr<Source> Open(const std::vector<std::string>& paths,
                              const std::string& format = "") const {
    return Source::Open(paths,
                        {.format = format, .cache_folder = Cache(), .load_unpack_parquet = [] {
                           return absl::StatusOr<UnpackParquetFunction>(
                               absl::UnimplementedError("there is no library"));
                         }});
  }

  std::string ErrorOf(const std::vector<std::string>& paths, const std::string& format = "") const {
    const auto source = Open(paths, format);
    return source.ok() ? "" : std::string(source.status().message());
  }

  // Every sample's text, or the error in its place.
  std::vector<std::string> Texts(const std::vector<std::string>& paths,
                                 const std::string& format = "") const {
    const auto source = Open(paths, format);
    if (!source.ok()) return {std::string(source.status().message())};
    std::vector<std::string> texts;
    for (int64_t i = 0; i < source->size(); ++i) {
      const auto sample = source->Read(i);
      texts.emplace_back(sample.ok() ? sample->text : sample.status().message());
    }
    return texts;
  }

  // Names of the files in the cache, but for the lock.
  std::vector<std::string> CacheFiles() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(Cache())) {
      if (entry.path().filename() != "lock") names.push_back(entry.path().extension().string());
    }
    std::sort(names.begin(), names.end());
    return names;
  }

  std::string folder_;
};

// A text of more than kMinBytesToKeep, whose lines tell their numbers.
std::string BigText(int seed) {
  std::string text;
  for (int i = 0; text.size() < kMinBytesToKeep; ++i)
    absl::StrAppend(&text, seed, " ", i, std::string(static_cast<size_t>(i % 97), 'x'), "\n");
  return text;
}

TEST_F(SourceTest, ALineIsASampleWhateverItsEnd) {
  EXPECT_THAT(Texts({Write("a.txt", "one\ntwo\n")}), ElementsAre("one", "two"));
  EXPECT_THAT(Texts({Write("b.txt", "one\ntwo")}), ElementsAre("one", "two"));
  EXPECT_THAT(Texts({Write("c.txt", "one\r\n\r\ntwo\r\n")}), ElementsAre("one", "two"));
  EXPECT_THAT(Texts({Write("d.txt", "one")}), ElementsAre("one"));
  EXPECT_THAT(Texts({Write("e.txt", "\n \t\n one \n\n")}), ElementsAre(" one "));
  EXPECT_THAT(Texts({Write("f.txt", "\xef\xbb\xbfone\n")}), ElementsAre("one"));
  EXPECT_THAT(Texts({Write("g.txt", "")}), IsEmpty());
  EXPECT_THAT(Texts({Write("h.txt", "\n\n")}), IsEmpty());
  EXPECT_THAT(Texts({Write("i.txt", std::string("a\0b\n", 4))}),
              ElementsAre(std::string("a\0b", 3)));
}

TEST_F(SourceTest, AVeryLongLineIsOneSample) {
  const std::string line(5 << 20, 'x');
  const std::vector<std::string> texts = Texts({Write("a.txt", "short\n" + line + "\nend")});
  ASSERT_THAT(texts, SizeIs(3));
  EXPECT_TRUE(texts[1] == line);
  EXPECT_EQ(texts[2], "end");
}

TEST_F(SourceTest, AWholeTextIsASampleWhereItIsAskedFor) {
  EXPECT_THAT(Texts({Write("a.txt", "one\ntwo\n"), Write("b.md", "three"), Write("c", "")}, "text"),
              ElementsAre("one\ntwo\n", "three"));
}

TEST_F(SourceTest, FilesFollowEachOtherAndEmptyOnesAreNoHole) {
  Write("d/b.jsonl", "3\n4");
  Write("d/a.jsonl", "1\n2\n");
  Write("d/sub/c.ndjson", "5\n");
  Write("d/aa.jsonl", "");
  Write("d/.hidden.jsonl", "no");
  Write("d/.git/hidden.jsonl", "no");
  Write("d/_SUCCESS", "");
  Write("d/_old.jsonl", "no");
  Write("d/_temporary/part.jsonl", "no");
  Write("d/README.md", "not data");
  EXPECT_THAT(Texts({Path("d")}), ElementsAre("1", "2", "3", "4", "5"));
  EXPECT_THAT(Texts({Path("d/b.jsonl"), Path("d/aa.jsonl"), Path("d/a.jsonl")}),
              ElementsAre("3", "4", "1", "2"));
}

TEST_F(SourceTest, PlaceNamesFileAndLine) {
  Write("a.jsonl", "1\n2\n");
  Write("b.jsonl", "\n3\n\n\n4\n");
  const auto source = Open({Path("a.jsonl"), Path("b.jsonl")});
  ASSERT_TRUE(source.ok());

  EXPECT_EQ(source->Describe(0), Path("a.jsonl") + ", line 1");
  EXPECT_EQ(source->Describe(1), Path("a.jsonl") + ", line 2");
  EXPECT_EQ(source->Describe(2), Path("b.jsonl") + ", line 2");
  EXPECT_EQ(source->Describe(3), Path("b.jsonl") + ", line 5");
}

TEST_F(SourceTest, AnArrayHasASampleForEachElement) {
  const std::string array = "[\n  {\"a\": 1,\n   \"b\": \"],\"},\n  {\"a\": 2}\n]\n";
  Write("a.json", array);
  WriteGzip("b.json.gz", "[3]");
  EXPECT_THAT(Texts({Path("a.json"), Path("b.json.gz")}),
              ElementsAre("{\"a\": 1,\n   \"b\": \"],\"}", "{\"a\": 2}", "3"));
  EXPECT_EQ(Open({Path("a.json")})->Describe(1), Path("a.json") + ", element 2");
  EXPECT_THAT(Texts({Write("c.txt", array)}, "json"), SizeIs(2));
  // A file of more than 1 MiB: the cache has where its elements begin.
  std::string large = "[-1";
  for (int i = 0; i < 19999; ++i) absl::StrAppend(&large, ",\"", std::string(60, 'x'), i, "\"");
  Write("large.json", large + "]");
  for (int round = 0; round < 2; ++round) {
    const std::vector<std::string> texts = Texts({Path("large.json")});
    ASSERT_THAT(texts, SizeIs(20000));
    EXPECT_THAT(texts[19999], HasSubstr("x19998\""));
  }
}

TEST_F(SourceTest, AJsonFileMayHoldLines) {
  EXPECT_THAT(Texts({Write("a.json", "{\"a\": 1}\n\n{\"a\": 2}\n")}),
              ElementsAre("{\"a\": 1}", "{\"a\": 2}"));
  EXPECT_EQ(Open({Path("a.json")})->Describe(1), Path("a.json") + ", line 3");
  EXPECT_THAT(ErrorOf({Write("b.json", "{\n  \"data\": [{\"a\": 1}]\n}\n")}),
              HasSubstr("b.json: it is one object; expected an array of samples"));
  EXPECT_THAT(ErrorOf({Write("c.json", "[1, 2")}),
              HasSubstr("c.json: the array has no end: the file ends after element 2"));
}

TEST_F(SourceTest, JsonFilesOfAFolderAreReadWhereTheyAreAskedFor) {
  Write("d/data.jsonl", "1\n");
  Write("d/dataset_info.json", "{\"splits\": {}}");
  EXPECT_THAT(Texts({Path("d")}), ElementsAre("1"));
  const std::string e = fs::path(Write("e/a.json", "[1]")).parent_path();
  EXPECT_THAT(ErrorOf({e}), HasSubstr("a folder's .json files are read with format ="));
  EXPECT_THAT(Texts({e}, "json"), ElementsAre("1"));
}

// Stands for Arrow's library: gives three rows, and counts its calls.
int num_unpacked = 0;
std::string UnpackThree(const std::string& path, const std::vector<std::string>& columns,
                        const std::function<std::string(std::string_view)>& write) {
  ++num_unpacked;
  for (const char* row : {"a", "", "ccc"}) {
    const std::string problem = write(absl::StrCat(row, absl::StrJoin(columns, ",")));
    if (!problem.empty()) return problem;
  }
  return absl::StrContains(path, "broken") ? path + ": row 4 is broken" : "";
}

TEST_F(SourceTest, ATableIsUnpackedOnceForEachChoiceOfColumns) {
  const auto texts = [&](const std::string& path, const std::vector<std::string>& columns) {
    const auto source = Source::Open(
        {path}, {.cache_folder = Cache(), .columns = columns, .load_unpack_parquet = [] {
                   return absl::StatusOr<UnpackParquetFunction>(UnpackThree);
                 }});
    if (!source.ok()) return std::vector<std::string>{std::string(source.status().message())};
    EXPECT_EQ(source->Describe(2), path + ", row 3");
    std::vector<std::string> found;
    for (int64_t i = 0; i < source->size(); ++i) found.emplace_back(source->Read(i)->text);
    return found;
  };
  const std::string path = Write("a.parquet", "PAR1");
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(texts(path, {}), ElementsAre("a", "", "ccc"));
    EXPECT_THAT(texts(path, {"x", "y"}), ElementsAre("ax,y", "x,y", "cccx,y"));
  }
  EXPECT_EQ(num_unpacked, 2);

  Write("a.parquet", "PAR1 and more");
  EXPECT_THAT(texts(path, {}), ElementsAre("a", "", "ccc"));
  EXPECT_EQ(num_unpacked, 3);

  const std::string broken = Write("broken.parquet", "PAR1");
  EXPECT_THAT(texts(broken, {}), ElementsAre(broken + ": row 4 is broken"));
  EXPECT_THAT(texts(broken, {}), ElementsAre(broken + ": row 4 is broken"));
  EXPECT_EQ(num_unpacked, 5);
  EXPECT_THAT(texts(Write("a.jsonl", "1\n"), {"x"})[0], HasSubstr("only for Parquet files"));
}

TEST_F(SourceTest, BadPathsAreNamed) {
  EXPECT_THAT(ErrorOf({Path("none.jsonl")}), HasSubstr("none.jsonl: there is no such file"));
  EXPECT_THAT(ErrorOf({Write("a.csv", "1")}), HasSubstr("a.csv: the name does not tell"));
  EXPECT_THAT(ErrorOf({Write("a.parquet", "1")}), HasSubstr("a.parquet: there is no library"));
  EXPECT_THAT(ErrorOf({}), HasSubstr("the list of files is empty"));
  EXPECT_THAT(ErrorOf({Path("a.csv")}, "csv"), HasSubstr("not \"csv\""));
  fs::create_directories(Path("empty"));
  EXPECT_THAT(ErrorOf({Path("empty")}), HasSubstr("has no samples"));
  Write("mixed/a.jsonl", "1");
  Write("mixed/a.txt", "1");
  EXPECT_THAT(ErrorOf({Path("mixed")}), HasSubstr("several formats"));
  Write("columns/train.parquet", "1");
  EXPECT_THAT(ErrorOf({Path("columns")}), HasSubstr("train.parquet: there is no library"));
}

TEST_F(SourceTest, AChangedFileIsAnErrorWhenItIsRead) {
  const std::string path = Write("a.jsonl", "1\n2\n");
  const auto message = [&](const std::function<void()>& change) {
    Write("a.jsonl", "1\n2\n");
    const auto source = Open({path});
    change();
    return std::string(source->Read(1).status().message());
  };

  EXPECT_THAT(message([&] { Write("a.jsonl", "1\n2\n3\n"); }),
              HasSubstr("it had 4 bytes, and has 6"));
  EXPECT_THAT(message([&] { Write("a.jsonl", "1"); }), HasSubstr("it had 4 bytes, and has 1"));
  EXPECT_THAT(message([&] { fs::remove(path); }), HasSubstr("cannot be found any more"));
  EXPECT_THAT(message([&] { fs::rename(Write("b", "1\n9\n"), path); }),
              HasSubstr("has changed since it was opened"));
  EXPECT_THAT(message([&] {
                const timespec times[2] = {{1, 0}, {1, 0}};
                utimensat(AT_FDCWD, path.c_str(), times, 0);
              }),
              HasSubstr("its time of modification is another"));
  EXPECT_THAT(message([] {}), IsEmpty());
}

TEST_F(SourceTest, ABigFilesIndexIsKeptAndAStaleOneIsBuiltAgain) {
  const std::string path = Write("a.txt", BigText(1));
  const std::vector<std::string> first = Texts({path});
  EXPECT_THAT(CacheFiles(), ElementsAre(".index"));
  EXPECT_EQ(absl::StrJoin(first, "\n") + "\n", BigText(1));
  EXPECT_EQ(Texts({path}), first);

  // The same size, other lines.
  std::string other = BigText(1);
  std::replace(other.begin(), other.end(), ' ', '\n');
  Write("a.txt", other);
  EXPECT_EQ(absl::StrJoin(Texts({path}), "\n") + "\n", other);
  EXPECT_THAT(CacheFiles(), ElementsAre(".index"));
}

TEST_F(SourceTest, AKeptIndexIsUsed) {
  const std::string path = Write("a.txt", BigText(1));
  ASSERT_TRUE(Open({path}).ok());
  fs::path index;
  for (const auto& entry : fs::directory_iterator(Cache())) {
    if (entry.path().extension() == ".index") index = entry.path();
  }
  // The first sample now begins at byte 2 of its line.
  std::fstream file(index, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(64);
  file.put(2);
  file.close();

  const auto source = Open({path});
  EXPECT_EQ(source->Read(0)->text, BigText(1).substr(2, BigText(1).find('\n') - 2));
}

TEST_F(SourceTest, ATornIndexIsBuiltAgain) {
  const std::string path = Write("a.txt", BigText(1));
  const std::vector<std::string> first = Texts({path});
  for (const int size : {0, 10, 64, 1000}) {
    for (const auto& entry : fs::directory_iterator(Cache())) {
      if (entry.path().extension() == ".index") fs::resize_file(entry.path(), size);
    }
    EXPECT_EQ(Texts({path}), first) << size;
  }
}

TEST_F(SourceTest, GzipReadsAsTheTextInIt) {
  EXPECT_THAT(Texts({WriteGzip("a.jsonl.gz", "1\n\n2")}), ElementsAre("1", "2"));
  EXPECT_THAT(CacheFiles(), ElementsAre(".index", ".unpacked"));
  EXPECT_THAT(Texts({Path("a.jsonl.gz")}), ElementsAre("1", "2"));

  // Another text under the name: the copy of the first is removed.
  WriteGzip("a.jsonl.gz", "3\n4\n5");
  EXPECT_THAT(Texts({Path("a.jsonl.gz")}), ElementsAre("3", "4", "5"));
  EXPECT_THAT(CacheFiles(), ElementsAre(".index", ".unpacked"));

  const auto source = Open({Path("a.jsonl.gz")});
  EXPECT_EQ(source->Describe(2), Path("a.jsonl.gz") + ", line 3");
}

TEST_F(SourceTest, AMissingUnpackedCopyIsMadeAgain) {
  WriteGzip("a.jsonl.gz", "1\n2");
  ASSERT_TRUE(Open({Path("a.jsonl.gz")}).ok());
  for (const auto& entry : fs::directory_iterator(Cache())) {
    if (entry.path().extension() == ".unpacked") fs::remove(entry.path());
  }
  EXPECT_THAT(Texts({Path("a.jsonl.gz")}), ElementsAre("1", "2"));
}

TEST_F(SourceTest, AFileThatIsNotGzipAlthoughItsNameSaysSoIsAnError) {
  EXPECT_THAT(ErrorOf({Write("a.txt.gz", "one\ntwo\n")}),
              HasSubstr("a.txt.gz: not a gzip file, although its name ends in .gz; compress it"));
  EXPECT_THAT(ErrorOf({Write("b.jsonl.GZ", "")}),
              HasSubstr("b.jsonl.GZ: not a gzip file, since it is empty; compress it"));
}

TEST_F(SourceTest, ACutGzipFileIsAnErrorAndLeavesNothing) {
  const std::string path = WriteGzip("a.jsonl.gz", BigText(1));
  fs::resize_file(path, fs::file_size(path) / 2);
  EXPECT_THAT(ErrorOf({path}), HasSubstr("a.jsonl.gz: unexpected end of file"));
  EXPECT_THAT(CacheFiles(), IsEmpty());
}

TEST_F(SourceTest, ACacheThatCannotBeWrittenIsAnErrorWithAdvice) {
  const std::string path = Write("a.txt", BigText(1));
  Write("cache", "a file where the folder should be");
  EXPECT_THAT(ErrorOf({path}), HasSubstr("set LOCKSTEP_CACHE"));
}

TEST_F(SourceTest, TarMembersOfOneStemAreOneSample) {
  const std::string folder = Path("members");
  fs::create_directories(folder);
  for (const char* name : {"0001.txt", "0001.json", "0002.json", ".hidden.txt"})
    std::ofstream(absl::StrCat(folder, "/", name)) << "of " << name;
  const std::string tar = Path("shard.tar");
  ASSERT_EQ(std::system(absl::StrCat("tar -C ", folder, " -cf ", tar,
                                     " .hidden.txt 0001.json 0001.txt 0002.json")
                            .c_str()),
            0);
  ASSERT_EQ(std::system(absl::StrCat("gzip -k ", tar).c_str()), 0);
  for (const std::string& path : {tar, tar + ".gz"}) {
    const auto source = Open({path});
    ASSERT_TRUE(source.ok()) << source.status().message();
    ASSERT_EQ(source->size(), 2);
    const auto first = source->Read(0);
    EXPECT_EQ(first->stem, "0001");
    ASSERT_THAT(first->members, SizeIs(2));
    EXPECT_EQ(first->members[0].first, "json");
    EXPECT_EQ(first->members[0].second, "of 0001.json");
    EXPECT_EQ(first->members[1].second, "of 0001.txt");
    EXPECT_THAT(source->Read(1)->members, SizeIs(1));
    EXPECT_EQ(source->Describe(1), path + ", member 0002");
  }
}

TEST_F(SourceTest, TarMembersThatAreNoNeighboursOrHaveNoEndingAreErrors) {
  const auto error_of = [&](const std::string& members) {
    const std::string folder = Path("members");
    fs::create_directories(folder);
    for (const char* name : {"1.a", "1.b", "2.a", "README"})
      std::ofstream(absl::StrCat(folder, "/", name)) << name;
    EXPECT_EQ(
        std::system(absl::StrCat("tar -C ", folder, " -cf ", Path("x.tar"), " ", members).c_str()),
        0);
    return ErrorOf({Path("x.tar")});
  };
  EXPECT_THAT(error_of("1.a 2.a 1.b"), HasSubstr("1.b does not follow the other members of 1"));
  EXPECT_THAT(error_of("1.a README"), HasSubstr("README has no ending"));
  EXPECT_THAT(error_of("--hard-dereference 1.a 1.a"), HasSubstr("1.a is there twice"));
  EXPECT_THAT(error_of("1.a 1.a"), HasSubstr("1.a is a link"));
  EXPECT_THAT(error_of("1.a 1.b 2.a"), IsEmpty());
}

TEST_F(SourceTest, ProcessesThatOpenAtOnceAllFindTheWholeIndex) {
  const std::string text = BigText(3);
  const std::string path = WriteGzip("a.jsonl.gz", text);
  const int64_t expected = std::count(text.begin(), text.end(), '\n');
  std::vector<pid_t> children;
  for (int i = 0; i < 4; ++i) {
    const pid_t pid = fork();
    if (pid == 0) {
      const auto source = Open({path});
      _exit(source.ok() && source->size() == expected ? 0 : 1);
    }
    children.push_back(pid);
  }
  for (const pid_t pid : children) {
    int status = 1;
    waitpid(pid, &status, 0);
    EXPECT_EQ(status, 0);
  }
  EXPECT_THAT(CacheFiles(), ElementsAre(".index", ".unpacked"));
}

// Reads all samples and their places; what cannot be read has one clear error.
void ReadAll(const absl::StatusOr<Source>& source) {
  const auto expect_clear = [](const absl::Status& status) {
    const std::string message(status.message());
    EXPECT_FALSE(message.empty());
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  };
  if (!source.ok()) return expect_clear(source.status());
  for (int64_t i = 0; i < source->size(); ++i) {
    EXPECT_FALSE(source->Describe(i).empty());
    const auto sample = source->Read(i);
    if (!sample.ok()) {
      expect_clear(sample.status());
      continue;
    }
    std::string copy(sample->text);  // reads every byte
    for (const auto& [name, content] : sample->members) copy += name + std::string(content);
  }
}

TEST_F(SourceTest, MutatedFilesAreReadOrRefused) {
  std::mt19937_64 random = tests::FuzzGenerator();
  const std::string members = Path("members");
  fs::create_directories(members);
  for (const char* name : {"1.txt", "1.json", "2.txt"})
    std::ofstream(absl::StrCat(members, "/", name)) << "of " << name;
  ASSERT_EQ(std::system(absl::StrCat("tar -C ", members, " -cf ", Path("good.tar"),
                                     " 1.json 1.txt 2.txt && gzip -k ", Path("good.tar"))
                            .c_str()),
            0);
  Write("good.jsonl", "{\"a\": 1}\n\n[2]\r\n\"three\"");
  WriteGzip("good.jsonl.gz", "{\"a\": 1}\n\n[2]\r\n\"three\"");
  for (const std::string ending : {".jsonl", ".jsonl.gz", ".tar", ".tar.gz"}) {
    std::ifstream in(Path("good" + ending), std::ios::binary);
    const std::string good(std::istreambuf_iterator<char>(in), {});
    for (int i = 0; i < 250; ++i)
      ReadAll(Open({Write("bad" + ending, tests::Mutate(good, 600, random))}));
  }
}

TEST_F(SourceTest, MutatedIndexesAreReadOrRefused) {
  std::mt19937_64 random = tests::FuzzGenerator();
  const std::string path = WriteGzip("a.jsonl.gz", "1\n22\n333\n");
  ASSERT_TRUE(Open({path}).ok());
  fs::path index;
  for (const auto& entry : fs::directory_iterator(Cache())) {
    if (entry.path().extension() == ".index") index = entry.path();
  }
  std::ifstream in(index, std::ios::binary);
  const std::string good(std::istreambuf_iterator<char>(in), {});
  for (int i = 0; i < 300; ++i) {
    std::ofstream(index, std::ios::binary) << tests::Mutate(good, good.size(), random);
    ReadAll(Open({path}));
  }
}

TEST_F(SourceTest, ThreadsReadAtOnce) {
  const auto source = Open({Write("a.txt", BigText(5))});
  ASSERT_TRUE(source.ok());
  std::vector<size_t> bytes(4);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < bytes.size(); ++t) {
    threads.emplace_back([&, t] {
      for (int64_t i = 0; i < source->size(); ++i) bytes[t] += source->Read(i)->text.size() + 1;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(bytes, ::testing::Each(BigText(5).size()));
}

}  // namespace
}  // namespace lockstep::data
