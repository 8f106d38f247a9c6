// SPDX-License-Identifier: MIT
//
// A program with device code, as nvcc links it. Without an argument it uses everything but the kernel.

#include <cstdio>

__device__ int counter;
__global__ void add_one(float* data, int count) {
  const int i = static_cast<int>(threadIdx.x);
  if (i < count) data[i] += 1;
  if (i == 0) ++counter;
}

int main(int argc, char**) {
  float* data = nullptr;
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || cudaMalloc(&data, 400) != cudaSuccess) return 3;
  if (cudaMemset(data, 0, 400) != cudaSuccess) return 4;
  if (argc > 1) add_one<<<1, 100>>>(data, 100);
  const cudaError_t first = cudaGetLastError();
  const cudaError_t second = cudaDeviceSynchronize();
  std::printf("%s, %s\n", cudaGetErrorName(first), cudaGetErrorName(second));
  return 0;
}
