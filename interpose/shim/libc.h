// SPDX-License-Identifier: MIT
//
// A preloaded library that the C library cannot satisfy stops every program before main, so the shim must run on the
// oldest glibc that NCCL's users have: nothing newer than GLIBC_2.28. Where glibc 2.29 to 2.39 moved a function (most
// of libdl and libpthread went into libc.so.6 in 2.34), its old version is asked for by name here. Included first by
// every file of the shim; tests/interpose reads the versions of the built library.

#pragma once

#if defined(__x86_64__)
#define LOCKSTEP_OLD(name) __asm__(".symver " #name "," #name "@GLIBC_2.2.5")
#elif defined(__aarch64__)
#define LOCKSTEP_OLD(name) __asm__(".symver " #name "," #name "@GLIBC_2.17")
#else
#define LOCKSTEP_OLD(name)
#endif

LOCKSTEP_OLD(dlopen);
LOCKSTEP_OLD(dlclose);
LOCKSTEP_OLD(dlvsym);
LOCKSTEP_OLD(dladdr);
LOCKSTEP_OLD(pthread_create);
LOCKSTEP_OLD(pthread_key_create);
LOCKSTEP_OLD(pthread_setspecific);
LOCKSTEP_OLD(pthread_sigmask);
LOCKSTEP_OLD(pthread_attr_setstacksize);

#undef LOCKSTEP_OLD
