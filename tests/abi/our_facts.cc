// SPDX-License-Identifier: MIT
#include "interpose/abi/nccl.h"
#include "probe.inc"

Facts our_facts() { return collect_facts(); }
