// SPDX-License-Identifier: MIT
//
// The traces of a folder as a supervisor sees them: which are its own to look after, and what it writes into them.

#pragma once

#include <sys/resource.h>
#include <sys/types.h>

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "interpose/trace/attach.h"
#include "tools/explain/symbols.h"

namespace lockstep {

class WatchedTraces {
 public:
  WatchedTraces(std::string folder, pid_t supervisor);
  ~WatchedTraces();
  WatchedTraces(const WatchedTraces&) = delete;
  WatchedTraces& operator=(const WatchedTraces&) = delete;

  // Attaches to traces that name this supervisor and have appeared since.
  void scan();
  // Readable when a file has appeared: a process must be known before it ends, or the time of its end is lost.
  int new_file_descriptor() const { return inotify_; }

  // Descriptors that become readable when a watched process ends.
  std::vector<int> end_descriptors() const;
  // Notes the ends of processes that are gone, all but the child's, whose status its parent will know.
  void note_ends(pid_t child);
  void note_child(pid_t child, int wait_status, const struct rusage& usage);

  // That this signal was passed on to the job, or sent to it, now: what ends after that did not end by itself.
  void note_signal(int signal);

  // Stacks of all watched processes, and the names of all that is needed to read them.
  void take_snapshots(char why);

  // Are there processes in this folder, alive, that another supervisor looks after?
  bool others_alive() const;
  bool any() const { return !watched_.empty() || !foreign_.empty(); }

 private:
  struct Watched {
    trace::Attachment trace;
    pid_t pid = 0;
    int pidfd = -1;
    bool ended = false;
  };
  void consider(const std::string& path);
  void end(Watched& watched, trace::SupervisorState how, int code, uint64_t peak_rss);
  void snapshot(Watched& watched, char why);

  std::string folder_;
  pid_t supervisor_;
  int inotify_;
  std::map<std::string, Watched> watched_;
  std::set<std::string> foreign_;
  Symbolizer symbolizer_;
};

}  // namespace lockstep
