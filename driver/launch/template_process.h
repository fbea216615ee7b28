// A process that has loaded the program with libtorch, and is forked for each rank that starts
// again. Loading libtorch takes a rank 0.3 s of a core, and a fork of this process 0.01 s.
//
//    // in the launcher                            // in main(), before all else
//    TemplateProcess ranks;                        if (auto arguments = ServeAsTemplate()) {
//    ranks.Start();                                  return Main(*arguments);  // a rank
//    pid_t pid = ranks.Fork(start);                }
//
// The forked process is a child of the launcher, in a process group of its own, as one that it
// spawned. It has the environment and arguments of `start`, and no thread but its own: the template
// has none besides the one that forks, or refuses. Thread: used by one thread.

#ifndef LOCKSTEP_DRIVER_LAUNCH_TEMPLATE_PROCESS_H_
#define LOCKSTEP_DRIVER_LAUNCH_TEMPLATE_PROCESS_H_

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"

namespace lockstep::driver {

struct ForkedStart {
  std::vector<std::string> arguments;    // without the program's name
  std::vector<std::string> environment;  // "NAME=value"
  int out = -1;                          // of stdout, or -1 for the launcher's
  int err = -1;
  int shared = -1;              // a descriptor that the new process inherits
  std::string shared_variable;  // and the environment variable that has its number
};

class TemplateProcess {
 public:
  TemplateProcess() = default;
  TemplateProcess(const TemplateProcess&) = delete;
  TemplateProcess& operator=(const TemplateProcess&) = delete;
  ~TemplateProcess();  // ends it

  // Starts it, unless it runs. It loads libtorch meanwhile.
  void Start();

  // Returns the new process, or -1 if the template does not run any more or refuses: spawn one
  // then.
  pid_t Fork(const ForkedStart& start);

  // Reaps the ended processes that this one has adopted since Start, such as keepers of snapshots,
  // and the template if it has ended. An ended process keeps its number until it is reaped. Stops
  // at one for which `is_own` is true: a child that the caller reaps by itself.
  void ReapAdopted(absl::FunctionRef<bool(pid_t)> is_own);

 private:
  void End();

  pid_t pid_ = -1;
  int socket_ = -1;
};

// Returns nullopt at once unless this process is a template. Otherwise forks as it is asked to and
// returns the arguments in each new process, and never in the template: that ends with the
// launcher.
std::optional<std::vector<std::string>> ServeAsTemplate();

}  // namespace lockstep::driver

#endif  // LOCKSTEP_DRIVER_LAUNCH_TEMPLATE_PROCESS_H_
