// Prints the sources of all cases as one file of C++: kRuns[i] runs case i for one thread of a GPU.

#include <cstdio>
#include <string>

#include "kernels/pointwise/cuda/cases.h"
#include "kernels/pointwise/cuda/source.h"

int main() {
  using namespace lockstep::kernels::pointwise::cuda;
  std::string text = "#include \"kernels/pointwise/cuda/device_words.h\"\n", table;
  int i = 0;
  for (const Case& test : Cases()) {
    const std::string name = "case_" + std::to_string(i++);
    text +=
        "namespace " + name + " {\n" + SourceOf(test.program, test.signature, name + "_kernel") +
        "void Run(const void* a) { " + name + "_kernel(*static_cast<const Arguments*>(a)); }\n}\n";
    table += name + "::Run, ";
  }
  text += "const std::vector<void (*)(const void*)> kRuns = {" + table + "};\n";
  std::fputs(text.c_str(), stdout);
  return 0;
}
