// SPDX-License-Identifier: MIT
//
// How the process ends, as far as it can tell: exit() by on_exit, a fatal signal by a handler that notes it and then
// lets the signal do what it would have done. A handler is set only where the signal's disposition was the default when
// recording started, so a job's own handlers are never touched, and core dumps and exit statuses stay as they were.
// _exit and SIGKILL leave no record; the file's lock tells of them.

#pragma once

namespace lockstep::shim {

void watch_exits();  // and forks: the child of a fork records nothing until it makes a communicator of its own

}  // namespace lockstep::shim
