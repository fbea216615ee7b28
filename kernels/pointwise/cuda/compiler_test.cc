// NVRTC compiles the sources of programs, which needs no GPU, and the cache keeps them.

#include "kernels/pointwise/cuda/compiler.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/pointwise/cuda/cases.h"
#include "kernels/pointwise/cuda/source.h"
#include "tests/support/message_of.h"

namespace lockstep::kernels::pointwise::cuda {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

const std::string kSource = "extern \"C\" __global__ void f(float* x) { *x = 1; }";

std::string NewFolder(const std::string& name) {
  const std::filesystem::path folder = std::filesystem::path(std::getenv("TEST_TMPDIR")) / name;
  std::filesystem::remove_all(folder);
  return folder.string();
}

std::filesystem::path OnlyFile(const std::string& folder) {
  std::filesystem::path only;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    EXPECT_TRUE(only.empty()) << entry.path();
    only = entry.path();
  }
  return only;
}

std::string Read(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

// Returns the number of runs of NVRTC that a call takes.
int64_t CompilationsOf(const std::string& source, int architecture, const std::string& folder) {
  const int64_t before = NumCompilations();
  EXPECT_THAT(Compile(source, architecture, folder), StartsWith("\177ELF"));
  return NumCompilations() - before;
}

TEST(Compiler, CompilesTheSourceOfEveryCase) {
  ASSERT_TRUE(HasCompiler());
  for (const Case& test : Cases()) {
    const std::string cubin = Compile(SourceOf(test.program, test.signature), 90, "");

    EXPECT_THAT(cubin, StartsWith("\177ELF")) << test.name;
    EXPECT_THAT(cubin, HasSubstr(kKernelName)) << test.name;
  }
}

TEST(Compiler, AMistakeIsAnErrorWithTheLog) {
  EXPECT_THAT(tests::MessageOf([] { Compile("__global__ void f() { g(); }", 90, ""); }),
              HasSubstr("identifier \"g\" is undefined"));
}

TEST(Compiler, TheCacheIsReadOnlyForTheSameSourceAndArchitecture) {
  const std::string folder = NewFolder("same") + "/deeper";

  EXPECT_EQ(CompilationsOf(kSource, 90, folder), 1);
  EXPECT_EQ(CompilationsOf(kSource, 90, folder), 0);
  EXPECT_EQ(CompilationsOf(kSource, 80, folder), 1);
  EXPECT_EQ(CompilationsOf(kSource + " ", 90, folder), 1);
  EXPECT_EQ(CompilationsOf(kSource, 90, folder), 0);
  EXPECT_EQ(CompilationsOf(kSource, 90, ""), 1);
}

TEST(Compiler, ADamagedFileIsCompiledAndWrittenAgain) {
  const std::string folder = NewFolder("damaged");
  const std::string cubin = Compile(kSource, 90, folder);
  const std::filesystem::path path = OnlyFile(folder);
  const std::string whole = Read(path);
  std::string changed = whole, other_key = whole;
  changed[whole.size() - 100] ^= 1;
  other_key[whole.find("float")] = 'F';
  for (const std::string& text :
       {std::string(), whole.substr(0, 20), whole.substr(0, whole.size() - 1), whole + "x", changed,
        other_key}) {
    std::ofstream(path, std::ios::binary) << text;
    const int64_t before = NumCompilations();

    EXPECT_EQ(Compile(kSource, 90, folder), cubin);

    EXPECT_EQ(NumCompilations() - before, 1);
    EXPECT_EQ(Read(OnlyFile(folder)), whole);
  }
}

TEST(Compiler, AFolderThatCannotBeWrittenIsNoError) {
  const std::string folder = NewFolder("file");
  std::ofstream(folder) << "a file, not a folder";

  EXPECT_EQ(CompilationsOf(kSource, 90, folder), 1);
  EXPECT_EQ(CompilationsOf(kSource, 90, folder), 1);
}

TEST(Compiler, TheCacheIsAFolderOfTheUser) {
  setenv("HOME", "/home/someone", 1);
  unsetenv("XDG_CACHE_HOME");
  unsetenv("LOCKSTEP_CACHE");
  EXPECT_EQ(CacheFolder(), "/home/someone/.cache/lockstep/kernels");
  setenv("XDG_CACHE_HOME", "/cache", 1);
  EXPECT_EQ(CacheFolder(), "/cache/lockstep/kernels");
  setenv("XDG_CACHE_HOME", "cache", 1);
  EXPECT_EQ(CacheFolder(), "/home/someone/.cache/lockstep/kernels");
  setenv("LOCKSTEP_CACHE", "/disk", 1);
  EXPECT_EQ(CacheFolder(), "/disk/kernels");
  unsetenv("LOCKSTEP_CACHE");
  unsetenv("XDG_CACHE_HOME");
  unsetenv("HOME");
  EXPECT_EQ(CacheFolder(), "");
}

}  // namespace
}  // namespace lockstep::kernels::pointwise::cuda
