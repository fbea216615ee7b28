// Runs the `lockstep` program as a user does: in a folder, on scripts, from a command line.
//
//    Folder folder;
//    folder.Write("train.lua", "print('on rank', require('lockstep.distributed').rank())");
//    const Ended ended = RunOne(Lockstep(folder, {"--nproc", "2", "train.lua"}));
//
// The program is data of the test: data = ["//driver:lockstep"].

#ifndef LOCKSTEP_TESTS_SUPPORT_PROGRAM_H_
#define LOCKSTEP_TESTS_SUPPORT_PROGRAM_H_

#include <map>
#include <string>
#include <vector>

#include "tests/support/ranks.h"

namespace lockstep::tests {

// A new, empty folder for one test.
class Folder {
 public:
  Folder();

  // Returns the path of a file or folder in it.
  std::string Path(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

  // Writes a file, and makes the folders on its path.
  void Write(const std::string& name, const std::string& content) const;

  // Returns the content of a file. Fails the test and returns "" if there is no such file.
  std::string Read(const std::string& name) const;

  // Returns the names in it, sorted.
  std::vector<std::string> List(const std::string& name = ".") const;

 private:
  std::string path_;
};

// Returns the path of a workspace file that is data of the test: "scripts/digits_vlm.lua".
std::string DataFile(const std::string& path);

// Returns the command that runs the program with these arguments in the folder.
Command Lockstep(const Folder& folder, const std::vector<std::string>& arguments);

// A run of a script that trains.
struct Training {
  std::string script;  // a workspace file that is data of the test: "scripts/dpo.lua"
  int nproc = 2;
  std::vector<std::string> settings = {};  // of --set: "steps=4"
  std::vector<std::string> options = {};   // of the program: "--restarts", "2"
  std::string run_dir = "out";
};

// Returns the command that runs it in the folder.
Command TrainCommand(const Folder& folder, const Training& training);

// The objects of a metrics.jsonl, each value as its JSON text.
using Metrics = std::vector<std::map<std::string, std::string>>;
Metrics ReadMetrics(const Folder& folder, const std::string& file);

// Returns a field of the steps, or of records of `event`, in their order. Leaves out what lacks it.
std::vector<double> ReadValues(const Folder& folder, const std::string& file,
                               const std::string& field, const std::string& event = "");

// Returns the lines "final bits" of a run that has ended well, by rank.
std::vector<std::string> FinalBits(const Ended& ended);

// Expects one error message of the program on stderr, in words for the user: no C++ terms, and
// `message` once.
void ExpectOneComplaint(const Ended& ended, const std::string& message);

// Returns the lines of `text` that contain `part`, each from there on, sorted.
std::vector<std::string> LinesWith(const std::string& text, const std::string& part);

// Returns the number of times that `part` occurs in `text`.
int Count(const std::string& text, const std::string& part);

}  // namespace lockstep::tests

#endif  // LOCKSTEP_TESTS_SUPPORT_PROGRAM_H_
