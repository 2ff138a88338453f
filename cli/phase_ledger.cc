#include "cli/phase_ledger.h"

#include <algorithm>
#include <cstdio>

#include "common/json.h"
#include "common/spec/phases.h"

namespace weft::cli {
namespace {

std::optional<double> NumberAt(const Json& object, const char* name) {
  const auto found = object.find(name);
  if (found == object.end() || !found->is_number()) return std::nullopt;
  return found->get<double>();
}

/// What the summary of a job says of its phases that are complete, in order.
Json SummariesOf(const v1::Job& job) {
  const Result<Json> summary = ParseJson(job.summary_json());
  if (!summary.ok() || !summary->is_object()) return Json::array();
  Json phases = summary->value("phases", Json::array());
  return phases.is_array() ? phases : Json::array();
}

void TakeSummary(const Json& summary, PhaseAccount& account) {
  account.tokens = NumberAt(summary, "tokens").value_or(0);
  account.flops = NumberAt(summary, "training_flops").value_or(0);
  account.start_loss_nats = NumberAt(summary, "start_validation_loss_nats");
  account.loss_nats = NumberAt(summary, "validation_loss_nats");
}

/// "4.56e+18", as plans have it.
std::string Flops(double flops) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.3g", flops);
  return text;
}

}  // namespace

std::vector<PhaseAccount> PhaseLedger(const v1::Job& job, double now) {
  const auto& phases = job.spec().phases();
  const auto count = static_cast<size_t>(phases.size());
  std::vector<PhaseAccount> ledger(count);
  if (count == 0) return ledger;
  for (size_t i = 0; i < count; ++i) {
    const v1::PhaseSpec& phase = phases[static_cast<int>(i)];
    ledger[i].title = PhaseTitle(i, count, phase.name());
    ledger[i].state = "to come";
    ledger[i].steps = phase.steps();
  }
  size_t at = 0;
  const v1::Attempt* newest = nullptr;
  for (const v1::Attempt& attempt : job.attempts()) {
    const double end = attempt.has_ended_at() ? attempt.ended_at() : now;
    ledger[at].seconds += std::max(end - attempt.started_at(), 0.0);
    newest = &attempt;
    if (attempt.reason() != v1::COMPLETED) continue;
    newest = nullptr;
    ledger[at].state = "complete";
    ledger[at].done_steps = ledger[at].steps;
    if (++at == count) break;
  }
  const Json summaries = SummariesOf(job);
  double tokens = 0;
  int64_t steps = 0;
  for (size_t i = 0; i < at; ++i) {
    if (i < summaries.size() && summaries[i].is_object()) TakeSummary(summaries[i], ledger[i]);
    tokens += ledger[i].tokens;
    steps += ledger[i].steps;
  }
  if (at == count) return ledger;
  PhaseAccount& present = ledger[at];
  if (newest != nullptr) present.state = "now";
  const v1::Progress& progress = job.progress();
  present.done_steps = std::max<int64_t>(progress.step() - steps, 0);
  if (present.done_steps == 0 || newest == nullptr) return ledger;
  present.tokens = std::max(static_cast<double>(progress.tokens()) - tokens, 0.0);
  present.flops =
      static_cast<double>(present.done_steps) * newest->plan().prediction().model_flops_per_step();
  if (progress.has_validation_loss() && progress.validation_step() > steps) {
    present.loss_nats = progress.validation_loss();
  }
  return ledger;
}

Table PhaseTable(const std::vector<PhaseAccount>& ledger) {
  Table table({"PHASE", "STATE", "STEP", "TOKENS", "FLOPS", "TIME", "GROWN LOSS", "LOSS"});
  const auto known = [](double value, std::string text) { return value > 0 ? text : "-"; };
  const auto loss = [](const std::optional<double>& nats) {
    return nats ? FixedText(*nats, 4) : "-";
  };
  for (const PhaseAccount& one : ledger) {
    table.Add({one.title, one.state,
               std::to_string(one.done_steps) + "/" + std::to_string(one.steps),
               known(one.tokens, HumanCount(one.tokens)), known(one.flops, Flops(one.flops)),
               known(one.seconds, HumanDuration(one.seconds)), loss(one.start_loss_nats),
               loss(one.loss_nats)});
  }
  return table;
}

}  // namespace weft::cli
