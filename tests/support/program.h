// The `lockstep` program as a user runs it: in a folder, on scripts, from a command line.
//
//   Folder folder;
//   folder.Write("train.lua", "print('on rank', require('lockstep.distributed').rank())");
//   const Ended ended = RunOne(Lockstep(folder, {"--nproc", "2", "train.lua"}));
//
// The program is data of the test: data = ["//driver:lockstep"].

#ifndef LOCKSTEP_TESTS_SUPPORT_PROGRAM_H_
#define LOCKSTEP_TESTS_SUPPORT_PROGRAM_H_

#include <map>
#include <string>
#include <vector>

#include "tests/support/ranks.h"

namespace lockstep::tests {

// A new, empty folder of the test's own.
class Folder {
 public:
  Folder();

  // The path of a file or folder in it.
  std::string Path(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

  // Makes the folders on the way.
  void Write(const std::string& name, const std::string& content) const;

  // What a file holds; fails the test and returns "" where there is none.
  std::string Read(const std::string& name) const;

  // Names of what it holds, sorted.
  std::vector<std::string> List(const std::string& name = ".") const;

 private:
  std::string path_;
};

// A file of the workspace that is data of the test: "scripts/digits_vlm.lua".
std::string DataFile(const std::string& path);

// The program with these arguments, run in the folder.
Command Lockstep(const Folder& folder, const std::vector<std::string>& arguments);

// The objects of a metrics.jsonl, each value as the text that stands there.
using Metrics = std::vector<std::map<std::string, std::string>>;
Metrics ReadMetrics(const Folder& folder, const std::string& file);

// Expects one complaint in the program's name on stderr, in words for the user: nothing of C++, and
// `message` once.
void ExpectOneComplaint(const Ended& ended, const std::string& message);

// How often `part` stands in `text`.
int Count(const std::string& text, const std::string& part);

}  // namespace lockstep::tests

#endif  // LOCKSTEP_TESTS_SUPPORT_PROGRAM_H_
