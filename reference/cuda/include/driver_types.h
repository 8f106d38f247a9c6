/* SPDX-License-Identifier: MIT
 *
 * The real toolkit keeps the runtime's types here; programs that include it by name find them all the same.
 */
#pragma once
#include "cuda_runtime_api.h"
