/* SPDX-License-Identifier: MIT
 *
 * The real toolkit declares cudaProfilerStart and cudaProfilerStop here; there is nothing to profile.
 */
#pragma once
#include "cuda_runtime_api.h"
