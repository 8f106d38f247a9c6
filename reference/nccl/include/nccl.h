/* SPDX-License-Identifier: MIT
 *
 * <nccl.h> for programs built without NCCL: the ABI of 2.10 to 2.30, and <cuda_runtime.h>, which the real one includes
 * too.
 */
#pragma once
#include "cuda_runtime.h"
#include "interpose/abi/nccl.h"
