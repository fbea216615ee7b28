// Compiles the kernels for GPUs for the CPU, to run on the emulator in tests.
#include "kernels/cuda/cross_entropy_cuda.cu"
