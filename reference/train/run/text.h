// SPDX-License-Identifier: MIT
//
// A text as tokens: its bytes. A sample is a window of `length` tokens and, shifted by one, what should be predicted
// from them. Windows do not overlap. The last twentieth of them is never trained on, whether there is an evaluation or
// not, so that asking for one changes nothing. A long text is mapped, not copied: ranks that are processes share its
// pages.

#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace train {

class Text {
 public:
  // `packed`: documents end at blank lines. Positions then count from the begin of a document, and the last token of
  // one has no target. Throws Refusal.
  Text(const std::string& path, int64_t length, int64_t vocab, bool packed);

  int64_t samples() const { return samples_; }  // to train on
  int64_t held_out() const { return held_out_; }

  // Of token `place` of sample i; samples at and beyond samples() are the held-out ones.
  int32_t token(int64_t i, int64_t place) const { return bytes_.get()[at(i, place)]; }
  int32_t target(int64_t i, int64_t place) const;  // -1: none
  int32_t position(int64_t i, int64_t place) const;
  int32_t document(int64_t i, int64_t place) const;  // inside the sample, from 0

  double unigram_entropy() const;  // in nats: the loss of who knows how often each byte occurs and nothing else

 private:
  size_t at(int64_t i, int64_t place) const { return static_cast<size_t>(i * length_ + place); }
  size_t document_of(size_t byte) const;
  void find_documents();
  void check_bytes(int64_t vocab) const;

  std::string path_;
  int64_t length_, samples_ = 0, held_out_ = 0;
  bool packed_;
  size_t size_ = 0;
  std::shared_ptr<const uint8_t> bytes_;
  std::vector<uint32_t> documents_;  // their first bytes, ascending; where texts are packed
};

// The text that comes with the program, in the build tree as in an installed one.
std::string bundled_text();

}  // namespace train
