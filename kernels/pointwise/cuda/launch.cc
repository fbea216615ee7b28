#include "kernels/pointwise/cuda/launch.h"

#include <dlfcn.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <string>
#include <type_traits>
#include <vector>

#include "c10/core/DeviceGuard.h"
#include "c10/core/impl/VirtualGuardImpl.h"
#include "c10/util/Exception.h"
#include "kernels/pointwise/cuda/compiler.h"
#include "kernels/pointwise/cuda/source.h"
#include "kernels/pointwise/layout.h"

namespace lockstep::kernels::pointwise::cuda {
namespace {

constexpr int64_t kThreads = 256;         // of a block without rows
constexpr int64_t kMostBlocks = 1 << 16;  // more elements, or rows, take more turns
constexpr size_t kMostWords = 4096 / 8;   // of a kernel's parameter

// cuda.h's, without its header: libtorch for CPUs does not have it.
struct Driver {
  int (*get_device)(int* device, int ordinal) = nullptr;
  int (*get_attribute)(int* value, int attribute, int device) = nullptr;
  int (*retain_context)(void** context, int device) = nullptr;
  int (*get_context)(void** context) = nullptr;
  int (*set_context)(void* context) = nullptr;
  int (*get_context_device)(int* device) = nullptr;
  int (*load_module)(void** module, const void* image) = nullptr;
  int (*get_function)(void** function, void* module, const char* name) = nullptr;
  int (*launch)(void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                unsigned block_y, unsigned block_z, unsigned shared_bytes, void* stream,
                void** parameters, void** extra) = nullptr;
};

const Driver* LoadedDriver() {
  static const Driver* const loaded = []() -> const Driver* {
    void* const library = dlopen("libcuda.so.1", RTLD_LAZY);
    if (library == nullptr) return nullptr;
    auto* const driver = new Driver;
    bool has_all = true;
    const auto load = [&](const char* name, auto* function) {
      void* const symbol = dlsym(library, name);
      has_all = has_all && symbol != nullptr;
      *function = reinterpret_cast<std::remove_pointer_t<decltype(function)>>(symbol);
    };
    load("cuDeviceGet", &driver->get_device);
    load("cuDeviceGetAttribute", &driver->get_attribute);
    load("cuDevicePrimaryCtxRetain", &driver->retain_context);
    load("cuCtxGetCurrent", &driver->get_context);
    load("cuCtxSetCurrent", &driver->set_context);
    load("cuCtxGetDevice", &driver->get_context_device);
    load("cuModuleLoadData", &driver->load_module);
    load("cuModuleGetFunction", &driver->get_function);
    load("cuLaunchKernel", &driver->launch);
    return has_all ? driver : nullptr;
  }();
  return loaded;
}

void CheckCuda(int status, const char* what) {
  TORCH_CHECK(status == 0, "pointwise: CUDA's driver returned ", status, " from ", what);
}

// Returns the driver's name for the current device. Makes its context current if the thread has
// none: its device was never set. Throws if the thread has the context of another device.
int DeviceWithContext(const Driver& driver, int index) {
  int device = 0;
  CheckCuda(driver.get_device(&device, index), "cuDeviceGet");
  void* context = nullptr;
  CheckCuda(driver.get_context(&context), "cuCtxGetCurrent");
  if (context != nullptr) {
    int actual = 0;
    CheckCuda(driver.get_context_device(&actual), "cuCtxGetDevice");
    TORCH_CHECK(actual == device, "pointwise: the thread's CUDA context is of device ", actual,
                ", expected device ", device, " (cuda:", index,
                "); another library has made its context current, and must restore ours");
    return device;
  }
  CheckCuda(driver.retain_context(&context, device), "cuDevicePrimaryCtxRetain");
  CheckCuda(driver.set_context(context), "cuCtxSetCurrent");
  return device;
}

// Loads the kernel of a call. It stays loaded.
void* LoadKernel(const Driver& driver, int device, const std::string& source) {
  constexpr int kMajor = 75, kMinor = 76;  // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_...
  int major = 0, minor = 0;
  CheckCuda(driver.get_attribute(&major, kMajor, device), "cuDeviceGetAttribute");
  CheckCuda(driver.get_attribute(&minor, kMinor, device), "cuDeviceGetAttribute");
  const std::string cubin = Compile(source, 10 * major + minor, CacheFolder());
  void *module = nullptr, *function = nullptr;
  CheckCuda(driver.load_module(&module, cubin.data()), "cuModuleLoadData");
  CheckCuda(driver.get_function(&function, module, kKernelName), "cuModuleGetFunction");
  return function;
}

std::string KeyOf(int64_t number, int device, const Signature& signature) {
  std::string key = std::to_string(number) + "/" + std::to_string(device) + "/" +
                    std::to_string(signature.num_dims) + "/" +
                    std::to_string(signature.num_row_dims) + (signature.is_large ? "l" : "s");
  for (const Signature::Input& input : signature.inputs) {
    key += static_cast<char>(input.dtype);
    key += static_cast<char>(input.access);
    key += input.is_row ? 'r' : 'f';
  }
  for (const at::ScalarType dtype : signature.results) key += static_cast<char>(dtype);
  return key;
}

void* FindKernel(const Driver& driver, int device, int64_t number, const Program& program,
                 const Signature& signature) {
  static auto* const mutex = new std::mutex;
  static auto* const kernels = new std::map<std::string, void*>;  // guarded by it
  const std::string key = KeyOf(number, device, signature);
  const std::lock_guard<std::mutex> lock(*mutex);
  const auto found = kernels->find(key);
  if (found != kernels->end()) return found->second;
  void* const kernel = LoadKernel(driver, device, SourceOf(program, signature));
  return kernels->emplace(key, kernel).first->second;
}

// Returns the threads of a block that computes a row. Each has four of its elements, or more.
int64_t ThreadsOf(int64_t length) {
  constexpr int64_t kWarp = 32, kMost = 512;
  return std::clamp((length + 4 * kWarp - 1) / (4 * kWarp) * kWarp, kWarp, kMost);
}

}  // namespace

bool CanLaunch(c10::Device device) {
  const Driver* const driver = LoadedDriver();
  if (driver == nullptr || !HasCompiler()) return false;
  static auto* const mutex = new std::mutex;
  static auto* const devices = new std::map<int, bool>;  // guarded by it
  const std::lock_guard<std::mutex> lock(*mutex);
  const auto [found, is_new] = devices->emplace(device.index(), true);
  if (!is_new) return found->second;
  try {
    const c10::DeviceGuard guard(device);
    LoadKernel(*driver, DeviceWithContext(*driver, device.index()),
               std::string("extern \"C\" __global__ void ") + kKernelName + "() {}\n");
  } catch (const c10::Error& error) {
    found->second = false;
    TORCH_WARN("lockstep.fuse has no kernels on ", device,
               ", and calls the functions themselves: ", error.what_without_backtrace());
  }
  return found->second;
}

void Launch(int64_t number, const Program& program, at::TensorList inputs,
            at::ArrayRef<double> numbers, at::IntArrayRef shape, at::TensorList results) {
  if (std::all_of(results.begin(), results.end(),
                  [](const at::Tensor& result) { return result.numel() == 0; }))
    return;
  const Driver* const driver = LoadedDriver();
  TORCH_CHECK(driver != nullptr, "pointwise: libcuda.so.1 was not found");

  const CallMemory memory(program, shape, inputs, results);
  const int64_t num_elements = c10::multiply_integers(shape), length = LengthOf(shape);
  const Signature signature = SignatureOf(num_elements, memory.inputs(), memory.results());
  const bool has_rows = NeedsRows(program);
  const int64_t count = has_rows ? c10::multiply_integers(ShapeOfRows(shape)) : num_elements;
  std::vector<int64_t> arguments =
      ArgumentsOf(count, length, memory.inputs(), memory.results(), numbers);
  TORCH_CHECK_VALUE(arguments.size() <= kMostWords, "a fused function on a GPU takes at most ",
                    8 * kMostWords, " bytes of arguments; this call has ", 8 * arguments.size(),
                    ", for ", inputs.size(), " tensors of up to ", shape.size(),
                    " dimensions; make its tensors contiguous, or make it two functions");

  const c10::Device device = inputs[0].device();
  const c10::DeviceGuard guard(device);
  const c10::impl::VirtualGuardImpl streams(device.type());
  const int driver_device = DeviceWithContext(*driver, device.index());
  void* const kernel = FindKernel(*driver, driver_device, number, program, signature);
  const int64_t threads = has_rows ? ThreadsOf(length) : kThreads;
  const int64_t blocks = has_rows ? count : (count + threads - 1) / threads;
  void* parameters[] = {arguments.data()};
  CheckCuda(
      driver->launch(kernel, static_cast<unsigned>(std::min(kMostBlocks, blocks)), 1, 1,
                     static_cast<unsigned>(threads), 1, 1, 0,
                     streams.getStreamNativeHandle(streams.getStream(device)), parameters, nullptr),
      "cuLaunchKernel");
}

}  // namespace lockstep::kernels::pointwise::cuda
