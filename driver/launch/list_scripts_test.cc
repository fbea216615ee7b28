#include "driver/launch/list_scripts.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "absl/status/statusor.h"
#include "gtest/gtest.h"

namespace lockstep::driver {
namespace {

std::string EmptyFolder(const std::string& name) {
  const std::string folder = testing::TempDir() + "/" + name;
  std::filesystem::remove_all(folder);
  std::filesystem::create_directory(folder);
  return folder;
}

void Write(const std::string& path, const std::string& text) { std::ofstream(path) << text; }

TEST(ListScripts, EachScriptStandsWithItsFirstSentence) {
  const std::string folder = EmptyFolder("scripts");
  Write(folder + "/b.lua", "-- Trains a model\n-- on 2 ranks. It takes a minute.\nlocal x = 1\n");
  Write(folder + "/longer.lua", "-- One line only\n\n-- Another comment.\n");
  Write(folder + "/plain.lua", "print(1)\n");

  const absl::StatusOr<std::string> list = ListScripts(folder);

  ASSERT_TRUE(list.ok()) << list.status();
  EXPECT_EQ(*list, folder + "/b.lua       Trains a model on 2 ranks.\n" + folder +
                       "/longer.lua  One line only\n" + folder + "/plain.lua\n");
}

TEST(ListScripts, ModulesAndOtherFilesAreLeftOut) {
  const std::string folder = EmptyFolder("modules");
  Write(folder + "/model.lua", "--- A module that scripts load.\nreturn {}\n");
  Write(folder + "/notes.txt", "-- No script.\n");
  Write(folder + "/script.lua", "-- A script.\n");

  EXPECT_EQ(*ListScripts(folder), folder + "/script.lua  A script.\n");
}

TEST(ListScripts, AFolderWithoutScriptsIsAnErrorThatNamesIt) {
  const std::string folder = EmptyFolder("none");

  EXPECT_EQ(
      ListScripts(folder).status().message(),
      "--list: there is no script in \"" + folder + "\"; name the folder, as in --list scripts");
  EXPECT_EQ(ListScripts(folder + "/missing").status().message(),
            "--list: there is no folder \"" + folder +
                "/missing\"; name the folder, as in --list scripts");
}

}  // namespace
}  // namespace lockstep::driver
