// SPDX-License-Identifier: MIT

#include "tools/scenario/judge.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

namespace lockstep {
namespace {

using nlohmann::json;
using scenario::Expectation;

std::string list(std::vector<int> ranks) {
  std::sort(ranks.begin(), ranks.end());
  std::string text;
  for (int r : ranks) text += (text.empty() ? "" : ",") + std::to_string(r);
  return text.empty() ? "none" : text;
}

std::string either(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& w : words) text += (text.empty() ? "" : " or ") + w;
  return text;
}

std::vector<int> ranks_at(const json& object, const char* name) {
  std::vector<int> ranks;
  if (auto at = object.find(name); at != object.end() && at->is_array())
    for (const json& r : *at)
      if (r.is_number_integer()) ranks.push_back(r.get<int>());
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

std::string text_at(const json& object, const char* name) {
  auto at = object.find(name);
  return at != object.end() && at->is_string() ? at->get<std::string>() : "";
}

std::string show(const json& object, const char* name) {
  auto at = object.find(name);
  return at == object.end() ? "nothing" : at->dump();
}

// The judge of one run. Every check_* adds a sentence to the differences or nothing.
class Judge {
 public:
  Judge(const scenario::Scenario& s, ScenarioVariant variant, const json& diagnosis)
      : scenario_(s),
        variant_(variant),
        expect_(s.expect),
        world_(scenario::permutation(variant.seed, s.ranks)),
        diagnosis_(diagnosis) {
    if (auto at = diagnosis_.find("findings"); at != diagnosis_.end() && at->is_array()) findings_ = *at;
    if (!findings_.empty() && findings_[0].is_object()) first_ = findings_[0];
  }

  ScenarioOutcome judge(int diagnose_status) {
    out_.verdict = verdict();
    check_status(diagnose_status);
    count(out_.score.kinds, out_.score.kinds_right, !expect_.kind.empty(), check_kind());
    count(out_.score.culprits, out_.score.culprits_right, !expect_.culprits.empty(), check_culprits());
    count(out_.score.calls, out_.score.calls_right,
          !expect_.comm.empty() || expect_.seq || !expect_.op.empty() || expect_.step || expect_.edge || expect_.peer,
          check_call());
    check_ranks("victims", expect_.victims, ranks_at(first_, "victims"));
    check_ranks("missing ranks", expect_.missing, ranks_at(diagnosis_.value("job", json::object()), "missing_ranks"));
    check_frame();
    check_also();
    check_accusations();
    if (variant_.wrapped) check_wrapped();
    out_.score.runs = 1;
    out_.score.right = out_.differences.empty();
    return std::move(out_);
  }

  ScenarioOutcome judge_with_loss(int lost, int diagnose_status) {
    out_.verdict = verdict();
    const std::string status = text_at(diagnosis_, "status");
    const bool well = std::count(expect_.status.begin(), expect_.status.end(), "healthy") > 0;
    if (!well && (status == "healthy" || status == "slow"))
      differ("status without the trace of rank " + std::to_string(lost), "anything but that", status);
    check_exit_status(status, diagnose_status);
    const std::vector<int> missing = ranks_at(diagnosis_.value("job", json::object()), "missing_ranks");
    if (!std::count(missing.begin(), missing.end(), lost))
      differ("missing ranks", "rank " + std::to_string(lost) + " among them", list(missing));
    check_accusations(lost);
    return std::move(out_);
  }

 private:
  bool differ(const std::string& what, const std::string& wanted, const std::string& got) {
    out_.differences.push_back(what + ": expected " + wanted + ", got " + got);
    return false;
  }

  static void count(int& all, int& right, bool asked, bool ok) {
    all += asked;
    right += asked && ok;
  }

  std::vector<int> to_world(const std::vector<int>& scene_ranks) const {
    std::vector<int> ranks;
    for (int r : scene_ranks) ranks.push_back(world_[static_cast<size_t>(r)]);
    std::sort(ranks.begin(), ranks.end());
    return ranks;
  }

  std::string verdict() const {
    std::string text = text_at(diagnosis_, "status");
    if (first_.empty()) return text;
    text += ": " + text_at(first_, "kind") + ", culprits " + list(ranks_at(first_, "culprits"));
    if (std::string op = text_at(first_, "op"); !op.empty()) text += ", " + op;
    if (first_.contains("seq") && first_["seq"].is_number()) text += " #" + show(first_, "seq");
    if (std::string comm = text_at(first_.value("comm", json::object()), "name"); !comm.empty()) text += " on " + comm;
    return text;
  }

  void check_status(int diagnose_status) {
    std::string status = text_at(diagnosis_, "status");
    if (!std::count(expect_.status.begin(), expect_.status.end(), status))
      differ("status", either(expect_.status), status.empty() ? "none" : status);
    check_exit_status(status, diagnose_status);
  }

  void check_exit_status(const std::string& status, int diagnose_status) {
    static const std::map<std::string, int> exits = {{"healthy", 0},  {"slow", 0},   {"hung", 1},
                                                     {"mismatch", 1}, {"failed", 1}, {"unknown", 3}};
    auto known = exits.find(status);
    if (known != exits.end() && known->second != diagnose_status)
      differ("exit status of diagnose", std::to_string(known->second) + " for " + status,
             std::to_string(diagnose_status));
  }

  bool check_kind() {
    if (expect_.kind.empty()) return true;
    std::string kind = first_.empty() ? "none" : text_at(first_, "kind");
    return std::count(expect_.kind.begin(), expect_.kind.end(), kind) || differ("kind", either(expect_.kind), kind);
  }

  bool check_culprits() {
    if (expect_.culprits.empty()) return true;
    std::vector<int> got = ranks_at(first_, "culprits");
    std::vector<std::string> wanted;
    for (const std::vector<int>& set : expect_.culprits) {
      if (to_world(set) == got) return true;
      wanted.push_back(list(to_world(set)));
    }
    return differ("culprits", either(wanted), list(got));
  }

  bool check_call() {
    size_t before = out_.differences.size();
    std::string comm = text_at(first_.value("comm", json::object()), "name");
    if (!expect_.comm.empty() && comm != expect_.comm)
      differ("communicator", expect_.comm, comm.empty() ? "none" : comm);
    if (!expect_.op.empty() && text_at(first_, "op") != expect_.op) differ("operation", expect_.op, show(first_, "op"));
    if (expect_.seq)
      check_number("seq", *expect_.seq + scenario::shifted_by(scenario_, expect_.comm.empty() ? comm : expect_.comm,
                                                              variant_.shift));
    if (expect_.step) check_number("step", *expect_.step + static_cast<uint64_t>(variant_.shift));
    if (expect_.edge) check_number("edge_seq", *expect_.edge);
    if (expect_.peer) check_number("peer", static_cast<uint64_t>(to_world({*expect_.peer}).front()));
    if (!expect_.direction.empty() && text_at(first_, "direction") != expect_.direction)
      differ("direction", expect_.direction, show(first_, "direction"));
    return out_.differences.size() == before;
  }

  void check_number(const char* name, uint64_t wanted) {
    auto at = first_.find(name);
    if (at == first_.end() || !at->is_number_integer() || at->get<uint64_t>() != wanted)
      differ(name, std::to_string(wanted), show(first_, name));
  }

  void check_ranks(const char* what, const std::optional<std::vector<int>>& wanted, const std::vector<int>& got) {
    if (wanted && to_world(*wanted) != got) differ(what, list(to_world(*wanted)), list(got));
  }

  // The function must be in the stacks of every rank that is blamed.
  void check_frame() {
    if (expect_.frame.empty()) return;
    json stacks = first_.value("stacks", json::object());
    for (int rank : ranks_at(first_, "culprits")) {
      std::string dump =
          stacks.is_object() && stacks.contains(std::to_string(rank)) ? stacks[std::to_string(rank)].dump() : "";
      if (dump.find(expect_.frame) == std::string::npos)
        differ("stack of rank " + std::to_string(rank), "the function " + expect_.frame,
               dump.empty() ? "none" : dump.substr(0, 300));
    }
  }

  // Else the variant would not be what it says.
  void check_wrapped() {
    const std::string remarks = show(diagnosis_, "remarks");
    if (remarks.find("wrapped") == std::string::npos) differ("remarks", "that the rings have wrapped", remarks);
  }

  void check_also() {
    if (expect_.also.empty()) return;
    for (size_t i = 1; i < findings_.size(); i++)
      if (text_at(findings_[i], "kind") == expect_.also &&
          (expect_.also_culprits.empty() || ranks_at(findings_[i], "culprits") == to_world(expect_.also_culprits)))
        return;
    differ("a later finding",
           expect_.also + (expect_.also_culprits.empty() ? "" : " by " + list(to_world(expect_.also_culprits))),
           "none such");
  }

  // Nobody may be blamed whom the scenario does not blame, in whatever finding. A rank without a trace may be named as
  // one that may be missing, as long as the finding does not call that certain.
  void check_accusations(int lost = -1) {
    std::vector<int> blamed_by_scene = to_world(expect_.also_culprits);
    for (const std::vector<int>& set : expect_.culprits)
      for (int r : to_world(set)) blamed_by_scene.push_back(r);
    const std::vector<int> untraced = to_world(scenario_.untraced);
    std::set<int> traceless(untraced.begin(), untraced.end());
    traceless.insert(lost);
    static const std::set<std::string> may_miss = {"missing-trace", "init-incomplete"};
    for (const json& finding : findings_) {
      std::string severity = text_at(finding, "severity");
      if (severity == "warning" || severity == "note") continue;
      for (int r : ranks_at(finding, "culprits")) {
        if (std::count(blamed_by_scene.begin(), blamed_by_scene.end(), r)) continue;
        if (traceless.count(r) && may_miss.count(text_at(finding, "kind")) &&
            text_at(finding, "confidence") != "certain")
          continue;
        out_.score.false_accusations++;
        differ("accusations", "none of rank " + std::to_string(r), text_at(finding, "kind"));
      }
    }
  }

  const scenario::Scenario& scenario_;
  ScenarioVariant variant_;
  const Expectation& expect_;
  std::vector<int> world_;
  const json& diagnosis_;
  json findings_ = json::array();
  json first_ = json::object();
  ScenarioOutcome out_;
};

std::string ratio(const char* what, int right, int all) {
  return std::string(what) + " " + std::to_string(right) + "/" + std::to_string(all) + ", ";
}

ScenarioOutcome no_verdict(int diagnose_status) {
  ScenarioOutcome out;
  out.verdict = "none";
  out.differences.push_back("diagnose --json ended with status " + std::to_string(diagnose_status) +
                            " and printed no verdict");
  out.score.runs = 1;
  return out;
}

}  // namespace

void ScenarioScore::add(const ScenarioScore& other) {
  runs += other.runs, right += other.right;
  kinds += other.kinds, kinds_right += other.kinds_right;
  culprits += other.culprits, culprits_right += other.culprits_right;
  calls += other.calls, calls_right += other.calls_right;
  false_accusations += other.false_accusations;
}

ScenarioOutcome judge_scenario(const scenario::Scenario& scenario, ScenarioVariant variant,
                               const std::string& diagnosis_json, int diagnose_status) {
  json diagnosis = json::parse(diagnosis_json, nullptr, false);
  if (!diagnosis.is_object()) return no_verdict(diagnose_status);
  return Judge(scenario, variant, diagnosis).judge(diagnose_status);
}

ScenarioOutcome judge_with_loss(const scenario::Scenario& scenario, ScenarioVariant variant, int lost,
                                const std::string& diagnosis_json, int diagnose_status) {
  json diagnosis = json::parse(diagnosis_json, nullptr, false);
  if (!diagnosis.is_object()) return no_verdict(diagnose_status);
  return Judge(scenario, variant, diagnosis).judge_with_loss(lost, diagnose_status);
}

namespace {

constexpr int kStepsThatWrap = 4200;  // a ring of 1 MiB holds 8192 records, and a call is two

bool may_be_hung(const scenario::Scenario& scenario) {
  const auto is_bad = [](const std::string& status) { return status == "hung" || status == "failed"; };
  return std::any_of(scenario.expect.status.begin(), scenario.expect.status.end(), is_bad);
}

}  // namespace

scenario::Scenario as_played(scenario::Scenario scenario, ScenarioVariant& variant) {
  // More ranks on as many cores: what is merely slow must stay below the threshold.
  if (variant.ranks > scenario.ranks && scenario.widen >= 0) scenario.hang_seconds *= 3, scenario.deadline *= 2;
  scenario::widen_to(scenario, variant.ranks);
  if (variant.wrapped) {
    variant.shift += kStepsThatWrap;
    scenario.deadline *= 3;
    scenario.environment.emplace_back("LOCKSTEP_RING_MB", "1");
  }
  if (variant.teardown) scenario.kill_on_hang = false;
  return scenario;
}

std::string why_not(const scenario::Scenario& s, const ScenarioVariant& variant) {
  const bool threads = variant.ranks_as == "threads" || (variant.ranks_as.empty() && s.threads);
  if (threads && !s.untraced.empty()) return "untraced ranks need processes of their own, so they cannot be threads";
  if (threads && !s.rank_environment.empty())
    return "ranks with settings of their own need processes of their own, so they cannot be threads";
  if (variant.ranks_as == "threads" && scenario::ends_processes(s))
    return "ranks that end by themselves would take the others along, so they cannot be threads";
  if (variant.ranks > s.ranks && s.widen < 0) return "it does not say what further ranks do (widen: RANK)";
  const auto exists = [](const scenario::Communicator& c) { return !c.later; };
  if (variant.wrapped && std::none_of(s.communicators.begin(), s.communicators.end(), exists))
    return "no communicator exists at the start, so no ring can be made to wrap";
  if (variant.teardown && (!s.kill_on_hang || !may_be_hung(s) || scenario::asks_for_judge(s)))
    return "no verdict comes while the job still runs, so there is nothing to tear down";
  return "";
}

std::string describe(const ScenarioScore& score) {
  return ratio("right", score.right, score.runs) + ratio("kind", score.kinds_right, score.kinds) +
         ratio("culprits", score.culprits_right, score.culprits) + ratio("call", score.calls_right, score.calls) +
         "false accusations " + std::to_string(score.false_accusations);
}

}  // namespace lockstep
