// SPDX-License-Identifier: MIT
//
// Threads of ours start with all signals blocked: a signal meant for the program must never land on one of them.

#pragma once

#include <pthread.h>
#include <signal.h>

namespace lockstep::host {

class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

}  // namespace lockstep::host
