#include "kernels/pointwise/cuda/fake_driver.h"

#include <cstring>

lockstep::kernels::pointwise::cuda::FakeDriver fake_driver;

extern "C" {

int cuDeviceGet(int* device, int ordinal) {
  *device = 10 + ordinal;
  return 0;
}

// Compute capability 9.0.
int cuDeviceGetAttribute(int* value, int attribute, int device) {
  *value = attribute == 75 ? 9 : 0;
  return device >= 10 && (attribute == 75 || attribute == 76) ? 0 : 1;
}

int cuDevicePrimaryCtxRetain(void** context, int device) {
  ++fake_driver.num_contexts;
  if (device < 10 || device > 11) return 1;
  *context = &fake_driver.contexts[device - 10];
  return 0;
}

int cuCtxGetCurrent(void** context) {
  *context = fake_driver.context;
  return 0;
}

int cuCtxSetCurrent(void* context) {
  fake_driver.context = context;
  return 0;
}

int cuCtxGetDevice(int* device) {
  if (fake_driver.context == nullptr) return 201;
  *device = *static_cast<int*>(fake_driver.context);
  return 0;
}

// 201 is CUDA_ERROR_INVALID_CONTEXT.
int cuModuleLoadData(void** module, const void* image) {
  if (fake_driver.context == nullptr) return 201;
  if (fake_driver.load_status != 0) return fake_driver.load_status;
  ++fake_driver.num_modules;
  *module = &fake_driver;
  return std::memcmp(image, "\177ELF", 4) == 0 ? 0 : 1;
}

int cuModuleGetFunction(void** function, void* module, const char* name) {
  fake_driver.kernel = name;
  *function = module;
  return 0;
}

int cuLaunchKernel(void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                   unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                   void* stream, void** parameters, void** extra) {
  if (fake_driver.launch_status != 0) return fake_driver.launch_status;
  if (fake_driver.context == nullptr || function != &fake_driver || extra != nullptr) return 1;
  if (grid_y * grid_z * block_y * block_z != 1 || shared_bytes != 0) return 1;
  fake_driver.run(grid_x, block_x, stream, parameters[0]);
  return 0;
}

}  // extern "C"
