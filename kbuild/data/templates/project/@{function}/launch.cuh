@% if cuda %@
// Launches that overlap: the set-up of a grid runs while the grid before it ends ("programmatic dependent launch", from
// compute capability 9.0 on). A kernel launched so calls wait_for_previous_grid() before it touches memory.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <utility>

namespace kernel {

// Waits for the grids before this one, then lets the next one begin. NB: no global memory may be touched before it.
__device__ inline void wait_for_previous_grid() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Of the current device; cheap, but not free: asked once for each of the first 64. NB: static, so that two kernels in one
// process share nothing; threads that race write the same value.
static cudaError_t capability_major(int* major) {
  static int known[64];
  int device = 0;
  if (cudaError_t error = cudaGetDevice(&device); error != cudaSuccess) return error;
  if (device < 64 && known[device] != 0) {
    *major = known[device];
    return cudaSuccess;
  }
  if (cudaError_t error = cudaDeviceGetAttribute(major, cudaDevAttrComputeCapabilityMajor, device); error != cudaSuccess)
    return error;
  if (device < 64) known[device] = *major;
  return cudaSuccess;
}

// Like kernel<<<grid, block, shared, stream>>>(arguments...), but it may begin before the grid ahead of it ends. Only a
// device of capability 9.0 or later accepts the attribute.
template <typename... Parameters, typename... Arguments>
cudaError_t launch_overlapping(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared, cudaStream_t stream,
                               Arguments&&... arguments) {
  int major = 0;
  if (cudaError_t error = capability_major(&major); error != cudaSuccess) return error;
  cudaLaunchAttribute overlap = {};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared;
  config.stream = stream;
  config.attrs = &overlap;
  config.numAttrs = major >= 9 ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...);
}

}  // namespace kernel
@% endif %@
