#include "kernels/pointwise/cuda/compiler.h"

#include <dlfcn.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <type_traits>
#include <utility>

#include "c10/util/Exception.h"

namespace lockstep::kernels::pointwise::cuda {
namespace {

// nvrtc.h's, without its header: libtorch for CPUs does not have it.
using NvrtcProgram = void*;
struct Nvrtc {
  int (*version)(int* major, int* minor) = nullptr;
  int (*create)(NvrtcProgram*, const char* source, const char* name, int num_headers,
                const char* const* headers, const char* const* names) = nullptr;
  int (*compile)(NvrtcProgram, int num_options, const char* const* options) = nullptr;
  int (*log_size)(NvrtcProgram, size_t*) = nullptr;
  int (*log)(NvrtcProgram, char*) = nullptr;
  int (*cubin_size)(NvrtcProgram, size_t*) = nullptr;
  int (*cubin)(NvrtcProgram, char*) = nullptr;
  int (*destroy)(NvrtcProgram*) = nullptr;
};

void* OpenNvrtc() {
  void* const runtime = dlopen("libcudart.so.13", RTLD_LAZY | RTLD_NOLOAD);
  Dl_info info = {};
  if (runtime != nullptr && dladdr(dlsym(runtime, "cudaGetDevice"), &info) != 0) {
    const std::filesystem::path folder = std::filesystem::path(info.dli_fname).parent_path();
    void* const beside = dlopen((folder / "libnvrtc.so.13").c_str(), RTLD_LAZY);
    if (beside != nullptr) return beside;
  }
  return dlopen("libnvrtc.so.13", RTLD_LAZY);
}

const Nvrtc* LoadedNvrtc() {
  static const Nvrtc* const loaded = []() -> const Nvrtc* {
    void* const library = OpenNvrtc();
    if (library == nullptr) return nullptr;
    auto* const nvrtc = new Nvrtc;
    bool has_all = true;
    const auto load = [&](const char* name, auto* function) {
      void* const symbol = dlsym(library, name);
      has_all = has_all && symbol != nullptr;
      *function = reinterpret_cast<std::remove_pointer_t<decltype(function)>>(symbol);
    };
    load("nvrtcVersion", &nvrtc->version);
    load("nvrtcCreateProgram", &nvrtc->create);
    load("nvrtcCompileProgram", &nvrtc->compile);
    load("nvrtcGetProgramLogSize", &nvrtc->log_size);
    load("nvrtcGetProgramLog", &nvrtc->log);
    load("nvrtcGetCUBINSize", &nvrtc->cubin_size);
    load("nvrtcGetCUBIN", &nvrtc->cubin);
    load("nvrtcDestroyProgram", &nvrtc->destroy);
    return has_all ? nvrtc : nullptr;
  }();
  return loaded;
}

std::atomic<int64_t> num_compilations = 0;

std::string CompileNow(const Nvrtc& nvrtc, const std::string& source, int architecture) {
  ++num_compilations;
  NvrtcProgram program = nullptr;
  int status = nvrtc.create(&program, source.c_str(), "fused.cu", 0, nullptr, nullptr);
  TORCH_CHECK(status == 0, "pointwise: nvrtcCreateProgram failed with ", status);
  const std::string target = "--gpu-architecture=sm_" + std::to_string(architecture);
  const char* const options[] = {target.c_str(), "--std=c++17"};
  status = nvrtc.compile(program, 2, options);
  std::string cubin, log;
  size_t size = 0;
  if (status != 0 && nvrtc.log_size(program, &size) == 0) {
    log.resize(size);
    nvrtc.log(program, log.data());
  } else if (status == 0) {
    status = nvrtc.cubin_size(program, &size);
    cubin.resize(size);
    if (status == 0) status = nvrtc.cubin(program, cubin.data());
  }
  nvrtc.destroy(&program);
  TORCH_CHECK(status == 0, "pointwise: NVRTC failed with ", status, " for sm_", architecture, ": ",
              log, "\n", source);
  return cubin;
}

// --- The cache

uint64_t HashOf(const std::string& text) {  // FNV-1a
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

std::string Hex(uint64_t number) {
  char text[17];
  std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(number));
  return text;
}

// Two lines, the checksum and the key's length, then the key and the cubin.
std::string Packed(const std::string& key, const std::string& cubin) {
  return Hex(HashOf(key + cubin)) + "\n" + Hex(key.size()) + "\n" + key + cubin;
}

// Returns the cubin of a file's text, or "" if the text is not whole, or has another key.
std::string Unpacked(const std::string& key, const std::string& text) {
  const size_t start = Packed("", "").size() + key.size();
  if (text.size() <= start) return "";
  const std::string cubin = text.substr(start);
  return text == Packed(key, cubin) ? cubin : "";
}

void Write(const std::filesystem::path& path, const std::string& text) {
  std::error_code error;
  std::filesystem::create_directories(path.parent_path(), error);
  std::string temporary = path.string() + ".XXXXXX";
  const int file = mkstemp(temporary.data());
  if (file < 0) return;
  const bool is_whole = write(file, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  const bool is_closed = close(file) == 0;
  if (is_whole && is_closed) std::filesystem::rename(temporary, path, error);
  if (!is_whole || !is_closed || error) std::filesystem::remove(temporary, error);
}

}  // namespace

bool HasCompiler() { return LoadedNvrtc() != nullptr; }

std::string CacheFolder() {
  const auto value_of = [](const char* variable) {
    const char* const value = std::getenv(variable);
    return std::string(value == nullptr ? "" : value);
  };
  if (const std::string own = value_of("LOCKSTEP_CACHE"); !own.empty()) return own + "/kernels";
  // The specification of XDG_CACHE_HOME asks to ignore a relative folder.
  if (const std::string user = value_of("XDG_CACHE_HOME"); user.starts_with('/'))
    return user + "/lockstep/kernels";
  const std::string home = value_of("HOME");
  return home.empty() ? "" : home + "/.cache/lockstep/kernels";
}

std::string Compile(const std::string& source, int architecture, const std::string& folder) {
  const Nvrtc* const nvrtc = LoadedNvrtc();
  TORCH_CHECK(nvrtc != nullptr, "pointwise: libnvrtc.so.13 was not found");
  if (folder.empty()) return CompileNow(*nvrtc, source, architecture);
  int major = 0, minor = 0;
  nvrtc->version(&major, &minor);
  const std::string key = "// NVRTC " + std::to_string(major) + "." + std::to_string(minor) +
                          ", sm_" + std::to_string(architecture) + "\n" + source;
  const std::filesystem::path path = std::filesystem::path(folder) / (Hex(HashOf(key)) + ".cubin");
  std::ostringstream text;
  if (std::ifstream file(path, std::ios::binary); file) text << file.rdbuf();
  std::string cubin = Unpacked(key, text.str());
  if (!cubin.empty()) return cubin;
  cubin = CompileNow(*nvrtc, source, architecture);
  Write(path, Packed(key, cubin));
  return cubin;
}

int64_t NumCompilations() { return num_compilations; }

}  // namespace lockstep::kernels::pointwise::cuda
