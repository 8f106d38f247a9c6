// SPDX-License-Identifier: MIT
//
// Ranks as processes, and the meeting place between them.

#include "reference/demo/launcher.h"

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

namespace demo {
namespace {

constexpr char kLinkVariable[] = "DEMO_LINK_FD";

// One message a packet; SOCK_SEQPACKET keeps them apart.
struct Message {
  enum Kind : int { id, epoch_over } kind;
  int steps;
  IdBytes bytes;
};

[[noreturn]] void fail(const char* what) {
  std::fprintf(stderr, "lockstep-demo: %s: %s\n", what, std::strerror(errno));
  std::exit(1);
}

bool send_message(int fd, const Message& message) {
  ssize_t n;
  do n = send(fd, &message, sizeof message, MSG_NOSIGNAL);
  while (n < 0 && errno == EINTR);
  return n == sizeof message;
}

// False when the other side has closed its end.
bool receive_message(int fd, Message& message) {
  ssize_t n;
  do n = read(fd, &message, sizeof message);
  while (n < 0 && errno == EINTR);
  return n == sizeof message;
}

// ---- a rank's side: without its launcher a rank is at its end, quietly, since whoever ended the launcher meant the
// job

void tell_launcher(int fd, const Message& message) {
  if (!send_message(fd, message)) std::exit(1);
}

Message hear_launcher(int fd) {
  Message message;
  if (!receive_message(fd, message)) std::exit(1);
  return message;
}

// ---- the launcher's side

struct Rank {
  pid_t pid = 0;
  int fd = -1;
  bool arrived = false;
};

// In the child: becomes rank `rank`. Only calls that are safe after fork, exec included, matter here.
[[noreturn]] void become_rank(int rank, int ranks, int fd, pid_t launcher, char** argv) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != launcher) _exit(1);
  setenv("RANK", std::to_string(rank).c_str(), 1);
  setenv("LOCAL_RANK", std::to_string(rank).c_str(), 1);
  setenv("WORLD_SIZE", std::to_string(ranks).c_str(), 1);
  setenv(kLinkVariable, std::to_string(fd).c_str(), 1);
  execv(std::filesystem::read_symlink("/proc/self/exe").c_str(), argv);  // by its name, which ps then shows
  fail("cannot start a rank");
}

Rank start_rank(int rank, int ranks, char** argv) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) < 0) fail("cannot make a socket pair");
  const pid_t launcher = getpid();
  const pid_t pid = fork();
  if (pid < 0) fail("cannot start a rank");
  if (pid == 0) become_rank(rank, ranks, dup(ends[1]), launcher, argv);
  close(ends[1]);
  return {pid, ends[0], false};
}

// A message to a rank that has just ended is lost; its end is noticed by itself.
void send_to_all(const std::vector<Rank>& ranks, const Message& message, const Rank* except = nullptr) {
  for (const Rank& r : ranks)
    if (r.fd >= 0 && &r != except) send_message(r.fd, message);
}

void serve(std::vector<Rank>& ranks, Rank& from, const Message& message) {
  if (message.kind == Message::id) return send_to_all(ranks, message, &from);
  from.arrived = true;
  const auto arrived = [](const Rank& r) { return r.arrived; };
  if (std::all_of(ranks.begin(), ranks.end(), arrived)) send_to_all(ranks, {Message::epoch_over, 0, {}});
}

// The rank has closed its end, so it has ended or is about to. Returns its exit status as a shell would say it.
int reap(Rank& rank) {
  close(rank.fd);
  rank.fd = -1;
  int status = 0;
  while (waitpid(rank.pid, &status, 0) < 0)
    if (errno != EINTR) fail("cannot wait for a rank");
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

void end_all(const std::vector<Rank>& ranks) {
  for (const Rank& r : ranks)
    if (r.fd >= 0) kill(r.pid, SIGTERM);
}

std::vector<pollfd> poll_list(const std::vector<Rank>& ranks) {
  std::vector<pollfd> list;
  for (const Rank& r : ranks) list.push_back({r.fd, POLLIN, 0});  // poll passes over closed ones, which are -1
  return list;
}

}  // namespace

void Link::publish_id(const IdBytes& id) const { tell_launcher(fd_, {Message::id, 0, id}); }
IdBytes Link::receive_id() const { return hear_launcher(fd_).bytes; }
void Link::arrive(int steps) const { tell_launcher(fd_, {Message::epoch_over, steps, {}}); }
void Link::all_arrived() const { hear_launcher(fd_); }

std::optional<RankPlace> find_launcher() {
  const char* fd = std::getenv(kLinkVariable);
  const char* rank = std::getenv("RANK");
  if (!fd || !rank) return std::nullopt;
  return RankPlace{std::atoi(rank), Link(std::atoi(fd))};
}

int launch(const Options& options, char** argv) {
  std::vector<Rank> ranks;
  for (int rank = 0; rank < options.ranks; ++rank) ranks.push_back(start_rank(rank, options.ranks, argv));

  int job_status = 0;
  for (int alive = options.ranks; alive > 0;) {
    std::vector<pollfd> list = poll_list(ranks);
    if (poll(list.data(), list.size(), -1) < 0 && errno != EINTR) fail("cannot wait for the ranks");
    for (size_t i = 0; i < list.size(); ++i) {
      Message message;
      if (list[i].revents == 0) continue;
      if (receive_message(list[i].fd, message)) {
        serve(ranks, ranks[i], message);
      } else {
        --alive;
        const int status = reap(ranks[i]);
        if (status == 0 || job_status != 0) continue;
        std::fprintf(stderr, "lockstep-demo: rank %zu ended with status %d; ending the others\n", i, status);
        job_status = status;
        end_all(ranks);
      }
    }
  }
  return job_status;
}

}  // namespace demo
