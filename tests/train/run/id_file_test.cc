// SPDX-License-Identifier: MIT
//
// The file in which ranks meet: which ones are taken for the present run's, and which for an earlier one's.

#include "reference/train/run/id_file.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>

#include "reference/train/run/refusal.h"

namespace train {
namespace {

constexpr double kShort = 0.05;  // seconds

class IdFile : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = std::filesystem::temp_directory_path() / "train-id-XXXXXX";
    folder_ = mkdtemp(name.data());
    path_ = folder_ + "/id";
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  static ncclUniqueId id_of(char letter) {
    ncclUniqueId id;
    std::memset(id.internal, letter, sizeof id.internal);
    return id;
  }
  // What rank 0 of another run writes, which ends then, or goes on until it is killed.
  pid_t write_elsewhere(char letter, bool goes_on) const {
    int done[2];
    EXPECT_EQ(pipe(done), 0);
    const pid_t child = fork();
    if (child == 0) {
      write_id(path_, id_of(letter));
      if (write(done[1], "x", 1) != 1) _exit(1);
      while (goes_on) pause();
      _exit(0);
    }
    char byte;
    EXPECT_EQ(read(done[0], &byte, 1), 1);
    close(done[0]);
    close(done[1]);
    if (!goes_on) waitpid(child, nullptr, 0);
    return child;
  }
  char read_letter() const { return read_id(path_, kShort).internal[127]; }
  static std::string refusal(const std::function<void()>& work) {
    try {
      work();
    } catch (const Refusal& refused) {
      return refused.what();
    }
    return "";
  }
  std::string content() const {
    std::ostringstream all;
    all << std::ifstream(path_).rdbuf();
    return all.str();
  }
  // As if written by a process of another machine, so many seconds ago.
  void pretend_other_machine(int64_t age) const {
    std::string all = content();
    const size_t boot = all.find("boot=") + 5, written = all.find("written=") + 8;
    all.replace(written, all.find('\n', written) - written, std::to_string(std::time(nullptr) - age));
    all[boot] = all[boot] == '0' ? '1' : '0';
    std::ofstream(path_) << all;
  }

  std::string folder_, path_;
};

TEST_F(IdFile, ComesBackAsItWasWritten) {
  write_id(path_, id_of('a'));
  EXPECT_EQ(read_letter(), 'a');
  EXPECT_EQ(std::memcmp(read_id(path_, kShort).internal, id_of('a').internal, sizeof(ncclUniqueId)), 0);
  write_id(path_, id_of('b'));  // the same rank 0 again
  EXPECT_EQ(read_letter(), 'b');
  EXPECT_FALSE(std::filesystem::exists(path_ + ".part"));
}

TEST_F(IdFile, OneOfARunThatGoesOnIsTakenAndNotReplaced) {
  const pid_t other = write_elsewhere('a', true);
  EXPECT_EQ(read_letter(), 'a');
  EXPECT_EQ(refusal([&] { write_id(path_, id_of('b')); }),
            path_ + " is where the ranks of process " + std::to_string(other) +
                " meet, which is running: name another file (--id-file)");
  kill(other, SIGKILL);
  waitpid(other, nullptr, 0);
}

TEST_F(IdFile, OneOfAnEarlierRunIsNotTakenAndReplaced) {
  const pid_t other = write_elsewhere('a', false);
  EXPECT_EQ(refusal([&] { read_letter(); }),
            path_ + " is left from an earlier run, whose rank 0 was process " + std::to_string(other) +
                ", and no rank 0 has replaced it for 0.05 s: start rank 0, or remove the file (--id-file)");
  write_id(path_, id_of('b'));
  EXPECT_EQ(read_letter(), 'b');
}

// The number of a process that has ended may be another's by now.
TEST_F(IdFile, ANumberThatIsAnotherProcessIsNotEnough) {
  write_id(path_, id_of('a'));
  std::string all = content();
  all.insert(all.find("started=") + 8, "1");
  std::ofstream(path_) << all;
  EXPECT_NE(refusal([&] { read_letter(); }).find("left from an earlier run"), std::string::npos);
}

TEST_F(IdFile, FromAnotherMachineItsAgeTells) {
  write_id(path_, id_of('a'));
  pretend_other_machine(10);
  EXPECT_EQ(read_letter(), 'a');
  pretend_other_machine(1000);
  EXPECT_NE(refusal([&] { read_letter(); }).find("left from an earlier run"), std::string::npos);
}

TEST_F(IdFile, NoFileAnEmptyOneAndOtherFiles) {
  const std::string none = "rank 0 has not written " + path_ + " for 0.05 s: start it with the same --id-file";
  EXPECT_EQ(refusal([&] { read_letter(); }), none);
  std::ofstream(path_).close();
  EXPECT_EQ(refusal([&] { read_letter(); }), none);
  std::ofstream(path_) << "my notes\n";
  const std::string other =
      path_ + " is there already and is not a meeting place of lockstep-train: name a new file (--id-file)";
  EXPECT_EQ(refusal([&] { read_letter(); }), other);
  EXPECT_EQ(refusal([&] { write_id(path_, id_of('a')); }), other);
  EXPECT_EQ(content(), "my notes\n");
  const std::string nowhere = folder_ + "/no/id";
  EXPECT_EQ(refusal([&] { write_id(nowhere, id_of('a')); }),
            "cannot write " + nowhere + ".part, where the ranks should meet (--id-file)");
}

}  // namespace
}  // namespace train
