// Compiles the kernels for GPUs for the CPU, to run on the emulator in tests.
#include "kernels/cuda/rows_cuda.cu"
