// SPDX-License-Identifier: MIT
//
// The verdict for people. The first line says all that one needs to know; what follows is the proof: expected beside
// actual, the odd stack beside one of the many, and every rank in a table in which equal ranks share a line.

#include <fmt/format.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <set>

#include "tools/explain/explain.h"
#include "tools/explain/symbols.h"
#include "tools/printable.h"
#include "tools/report/report.h"

namespace lockstep {
namespace {

constexpr size_t kFullTable = 16;  // up to this many ranks each has its own line

struct Paint {
  bool on;
  std::string bold(const std::string& text) const { return on ? "\033[1m" + text + "\033[0m" : text; }
  std::string red(const std::string& text) const { return on ? "\033[1;31m" + text + "\033[0m" : text; }
  std::string green(const std::string& text) const { return on ? "\033[1;32m" + text + "\033[0m" : text; }
  std::string dim(const std::string& text) const { return on ? "\033[2m" + text + "\033[0m" : text; }
};

std::string head(const Evidence& evidence, const Diagnosis& diagnosis, const Paint& paint) {
  const std::string sentence = printable(verdict_sentence(evidence, diagnosis));
  const size_t colon = sentence.find(':');
  const std::string word = sentence.substr(0, colon);
  const bool good = diagnosis.verdict == Verdict::healthy || diagnosis.verdict == Verdict::slow;
  return (good ? paint.green(word) : paint.red(word)) + paint.bold(sentence.substr(colon)) + "\n";
}

std::string rank_list(const Run& run, const std::vector<size_t>& ranks) { return ranks_text(run, ranks); }

// Odd ranks by what they did instead.
std::string actual_lines(const Evidence& evidence, const Finding& finding) {
  std::vector<std::pair<std::string, std::vector<size_t>>> groups;
  for (const auto& [rank, signature] : finding.actual) {
    const std::string did = signature ? signature_text(*signature) : "no such call";
    const auto same = std::find_if(groups.begin(), groups.end(), [&](const auto& group) { return group.first == did; });
    if (same == groups.end()) {
      groups.push_back({did, {rank}});
    } else {
      same->second.push_back(rank);
    }
  }
  std::string text;
  for (const auto& [did, ranks] : groups)
    text += fmt::format("  {:<12}{}: {}\n", "actual", rank_list(evidence.run, ranks), did);
  return text;
}

std::string proof(const Evidence& evidence, const Finding& finding) {
  std::string text;
  if (finding.expected) {
    const std::string whose = finding.culprits.empty() && finding.actual.size() > 1 && !finding.hangs ? "one side" : "";
    text +=
        fmt::format("  {:<12}{}{}\n", "expected", whose.empty() ? "" : whose + ": ", signature_text(*finding.expected));
  }
  text += actual_lines(evidence, finding);
  if (finding.agreed_seq && finding.comm)
    text += fmt::format("  {:<12}{} #{} on {}\n", "last agreed",
                        finding.agreed_op.empty() ? "collective" : finding.agreed_op, *finding.agreed_seq,
                        printable(evidence.table.comms[*finding.comm].name));
  if (finding.since.wall_ns) text += fmt::format("  {:<12}{}\n", "since", clock_text(finding.since.wall_ns));
  if (!finding.victims.empty())
    text += fmt::format("  {:<12}{}\n", "victims", rank_list(evidence.run, finding.victims));
  text += fmt::format("  {:<12}{}", "confidence", confidence_name(finding.confidence));
  for (size_t i = 0; i < finding.doubts.size(); i++) text += (i ? "; " : ": ") + printable(finding.doubts[i]);
  return text + "\n";
}

std::string stacks(const Evidence& evidence, const Finding& finding, const Paint& paint) {
  std::string text;
  std::vector<size_t> order = finding.culprits;
  order.insert(order.end(), finding.victims.begin(), finding.victims.end());
  size_t shown = 0;
  for (const size_t rank : order) {
    const auto found = finding.stacks.find(rank);
    if (found == finding.stacks.end() || ++shown > 4) continue;
    const bool is_culprit = std::find(finding.culprits.begin(), finding.culprits.end(), rank) != finding.culprits.end();
    const ThreadStack& stack = found->second;
    const char* when = stack.origin == "now" ? "now" : "when it made the call";
    text += fmt::format(
        "\n  {}\n", paint.bold(fmt::format("{} of {}, thread {}, {}:", is_culprit ? "stack" : "beside it, the stack",
                                           printable(rank_name(evidence.run, rank)), printable(stack.thread), when)));
    for (const Frame& frame : stack.frames) text += "    " + printable(frame_text(frame)) + "\n";
  }
  return text;
}

// --- table of ranks
// ------------------------------------------------------------------------------------------------------------

struct Line {
  std::vector<int> numbers;
  std::string label, place;
  std::set<std::string> hosts;
  RankState state;
};

std::vector<Line> lines_of(const Evidence& evidence, const Diagnosis& diagnosis) {
  const Run& run = evidence.run;
  const bool full = run.ranks.size() <= kFullTable;
  std::vector<Line> lines;
  for (size_t rank = 0; rank < run.ranks.size(); rank++) {
    const trace::FileHeader& header = run.process_of(rank).file.header;
    Line line;
    line.state = rank_state(evidence, diagnosis, rank);
    const auto same = std::find_if(lines.begin(), lines.end(), [&](const Line& other) {
      return !full && run.ranks[rank].number >= 0 && !other.numbers.empty() && other.state.state == line.state.state &&
             other.state.last_call == line.state.last_call && other.state.step == line.state.step;
    });
    Line& into = same == lines.end() ? lines.emplace_back(std::move(line)) : *same;
    if (run.ranks[rank].number >= 0) into.numbers.push_back(run.ranks[rank].number);
    into.hosts.insert(header.host);
    into.place = fmt::format("{}:{}", header.host, header.pid);
  }
  for (Line& line : lines) {
    line.label = line.numbers.empty() ? "?" : number_ranges(line.numbers);
    if (line.numbers.size() > 1)
      line.place = line.hosts.size() == 1 ? *line.hosts.begin() : fmt::format("{} hosts", line.hosts.size());
  }
  return lines;
}

std::string table(const Evidence& evidence, const Diagnosis& diagnosis, const Paint& paint) {
  std::vector<std::vector<std::string>> cells{{"rank", "host:pid", "state", "last call", "step", "last sign"}};
  for (const Line& line : lines_of(evidence, diagnosis))
    cells.push_back({line.label, printable(line.place), printable(line.state.state), printable(line.state.last_call),
                     line.state.step, line.state.sign});
  if (!evidence.run.missing.empty())
    cells.push_back({number_ranges(evidence.run.missing), "-", "no trace", "-", "-", "-"});
  std::vector<size_t> width(cells[0].size());
  for (const auto& row : cells)
    for (size_t i = 0; i < row.size(); i++) width[i] = std::max(width[i], row[i].size());
  std::string text = "\n";
  for (size_t r = 0; r < cells.size(); r++) {
    std::string row = " ";
    for (size_t i = 0; i < cells[r].size(); i++) row += fmt::format(" {:<{}}", cells[r][i], width[i] + 1);
    row.erase(row.find_last_not_of(' ') + 1);
    text += (r == 0 ? paint.dim(row) : row) + "\n";
  }
  return text;
}

std::string remarks(const Job& job, const Evidence& evidence, const Diagnosis& diagnosis) {
  std::string text;
  for (const std::string& remark : diagnosis.remarks) text += "  note: " + printable(remark) + "\n";
  for (const std::string& note : evidence.run.notes) text += "  note: " + printable(note) + "\n";
  constexpr size_t kMost = 20;
  const std::vector<std::string> left_out = what_was_left_out(job, evidence.run);
  for (size_t i = 0; i < left_out.size() && i < kMost; i++) text += "  left out: " + printable(left_out[i]) + "\n";
  if (left_out.size() > kMost)
    text += fmt::format("  left out: {} more; --json lists them all\n", left_out.size() - kMost);
  if (job.runs.size() > 1) {
    text += fmt::format("  note: {} runs in this folder; the newest is judged, the others are:", job.runs.size());
    for (size_t i = 0; i + 1 < job.runs.size(); i++)
      text += fmt::format("{} {} ({} traces, from {})", i ? "," : "",
                          job.runs[i].id.empty() ? "unnamed" : printable(job.runs[i].id), job.runs[i].processes.size(),
                          clock_text(job.runs[i].opened_wall_ns));
    text += "\n";
  }
  return text.empty() ? "" : "\n" + text;
}

}  // namespace

bool wants_colour(int fd) {
  const char* no = getenv("NO_COLOR");
  return isatty(fd) && !(no && *no);
}

std::string report_text(const Job& job, const Evidence& evidence, const Diagnosis& diagnosis, bool colour) {
  const Paint paint{colour};
  std::string text = head(evidence, diagnosis, paint);
  for (size_t i = 0; i < diagnosis.findings.size(); i++) {
    const Finding& finding = diagnosis.findings[i];
    if (i > 0)
      text += fmt::format("\n{} {}: {}\n", paint.bold("besides,"), kind_name(finding.kind), printable(finding.summary));
    if (finding.severity != Severity::note) text += proof(evidence, finding) + stacks(evidence, finding, paint);
    if (finding.severity != Severity::note)
      text += fmt::format("\n  {} {}\n", paint.bold("check first:"), printable(finding.next));
  }
  text += table(evidence, diagnosis, paint);
  return text + remarks(job, evidence, diagnosis);
}

}  // namespace lockstep
