#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "common/duration_text.h"
#include "common/model/memory_text.h"
#include "common/text.h"
#include "coordinator/planner/plan_text.h"
#include "coordinator/planner/report/explain.h"
#include "coordinator/planner/report/html_style.h"
#include "coordinator/planner/report/markup.h"
#include "coordinator/planner/report/money.h"
#include "coordinator/planner/report/svg_charts.h"
#include "coordinator/planner/units.h"

namespace weft::planner {
namespace {

std::string BytesText(double bytes) {
  return HumanBytes(static_cast<int64_t>(bytes));
}

/// A cell of a table: numbers are right-aligned.
struct Cell {
  std::string text;
  bool number = false;
};

/// A number's cell, or nothing where it is not known.
Cell Known(double value, const std::string& text) {
  return {value > 0 ? text : "–", true};
}

class HtmlWriter {
 public:
  explicit HtmlWriter(const PlanExplanation& explanation)
      : e_(explanation), chosen_(explanation.report.candidates.front()) {}

  std::string Page() {
    page_.Raw("<!DOCTYPE html>\n");
    page_.Open("html", {{"xmlns", "http://www.w3.org/1999/xhtml"}, {"lang", "en"}});
    page_.Open("head");
    page_.Add("meta", {{"charset", "utf-8"}});
    page_.Add("meta", {{"name", "viewport"}, {"content", "width=device-width, initial-scale=1"}});
    page_.Add("meta", {{"name", "color-scheme"}, {"content", "light dark"}});
    page_.Add("title", {}, "Plan of " + e_.job);
    page_.Open("style").Raw(HtmlStyle()).Close();
    page_.Close().Open("body");
    Head();
    Facts();
    Candidates();
    TimeBars();
    MemoryBars();
    TimelineChart();
    SensitivityChart();
    Alternatives();
    Frontier();
    Numbers();
    page_.Close().Close();
    return page_.Take();
  }

 private:
  const Plan& plan() const { return chosen_.plan; }

  Markup& Section(const std::string& heading) {
    return page_.Open("section").Add("h2", {}, heading);
  }

  void Head() {
    page_.Add("h1", {}, "Plan of " + e_.job);
    page_.Add("p", {{"class", "soft"}}, Sentence(chosen_.reason));
    page_.Add("p", {{"class", "soft"}},
              std::to_string(RankCount(plan().mesh)) + " ranks of " +
                  std::to_string(plan().threads_per_rank) + " threads (" + MeshText(plan()) +
                  "), on " + ClipText(PlacementText(plan()), 400) + "; " + plan().precision +
                  "; recomputed: " + RecomputedText(plan()) + ".");
    for (const std::string& note : e_.notes) page_.Add("p", {{"class", "soft"}}, Sentence(note));
  }

  static std::string Sentence(std::string text) {
    if (!text.empty() && text[0] >= 'a' && text[0] <= 'z')
      text[0] = static_cast<char>(text[0] - 32);
    return text + ".";
  }

  void Fact(const std::string& name, const std::string& value) {
    page_.Open("div", {{"class", "fact"}}).Add("dt", {}, name).Add("dd", {}, value).Close();
  }

  void Facts() {
    const Prediction& prediction = plan().prediction;
    const PlanDetail& detail = e_.details.front();
    page_.Open("dl", {{"class", "facts"}});
    Fact("Step", HumanSeconds(prediction.step_seconds));
    Fact("Throughput", HumanCount(prediction.tokens_per_second) + " tokens/s");
    Fact("All " + std::to_string(e_.steps) + " steps", HumanDuration(detail.finish_seconds));
    Fact("The whole run", HumanDuration(TotalSeconds(e_.run)));
    Fact(e_.device == "GPU" ? "GPUs in use" : "Machines in use",
         std::to_string(detail.devices) + " of " + std::to_string(e_.devices));
    Fact("Fewest that fit", std::to_string(e_.fewest_devices));
    Fact("Limited by", detail.binding + ", " + Percent(detail.binding_share, 1) + " of the step");
    Fact("Memory of a rank", HumanBytes(TotalBytes(prediction.memory_per_rank)) + " of " +
                                 HumanBytes(detail.memory_limit_bytes));
    Fact("Parameters", HumanCount(static_cast<double>(e_.report.parameters)));
    FrozenFacts();
    if (detail.price > 0) {
      Fact("Price", Money(detail.price, e_.currency));
      Fact("An hour", Money(detail.price_per_hour, e_.currency));
    }
    if (detail.watts > 0) Fact("Energy", KilowattHours(detail.kilowatt_hours));
    page_.Close();
    if (e_.lines.empty()) return;
    page_.Add("p", {{"class", "soft"}}, "Lines of the job that ask for this plan:");
    page_.Open("pre").Open("code");
    for (const std::string& line : e_.lines) page_.Text(line).Raw("\n");
    page_.Close().Close();
  }

  void FrozenFacts() {
    const PlanReport& report = e_.report;
    if (report.trained_parameters >= report.parameters) return;
    Fact("Trained", HumanCount(static_cast<double>(report.trained_parameters)));
    if (report.skipped_weight_gradient_flops > 0) {
      Fact("Weight gradients skipped",
           HumanCount(report.skipped_weight_gradient_flops) + "FLOPs a step");
    }
    if (report.unkept_activation_bytes > 0) {
      Fact("Activations not kept", HumanBytes(report.unkept_activation_bytes));
    }
  }

  static std::string KilowattHours(double value) {
    char text[48];
    std::snprintf(text, sizeof(text), value < 9.95 ? "%.2g kWh" : "%.0f kWh", value);
    return text;
  }

  void Row(const char* cell, const std::vector<Cell>& cells, const char* style = "") {
    page_.Open("tr", {{"class", style}});
    for (size_t i = 0; i < cells.size(); ++i) {
      const bool why = i + 1 == cells.size() && !cells[i].number;
      page_.Open(cell, {{"class", cells[i].number ? "n" : why ? "why" : ""}});
      page_.Text(cells[i].text).Close();
    }
    page_.Close();
  }

  void Table(const std::vector<Cell>& head) {
    page_.Open("div", {{"class", "wide"}}).Open("table").Open("thead");
    Row("th", head);
    page_.Close().Open("tbody");
  }

  void CloseTable() { page_.Close().Close().Close(); }

  static std::string NameOf(size_t index) { return std::to_string(index + 1); }

  void Candidates() {
    Section("Plans").Add("p", {{"class", "soft"}},
                         std::to_string(e_.report.candidates.size()) + " of " +
                             std::to_string(e_.report.candidates_considered) +
                             " considered. Plans without a step time do not fit.");
    const auto any = [&](double PlanDetail::*field) {
      return std::any_of(e_.details.begin(), e_.details.end(),
                         [&](const PlanDetail& detail) { return detail.*field > 0; });
    };
    const bool priced = any(&PlanDetail::price), metered = any(&PlanDetail::kilowatt_hours);
    std::vector<Cell> head = {{"", true},           {"ranks", true},       {"machines", true},
                              {"of them"},          {"threads", true},     {"micro-batch", true},
                              {"recomputed", true}, {"memory/rank", true}, {"step", true},
                              {"all steps", true}};
    if (priced) head.push_back({"price", true});
    if (metered) head.push_back({"energy", true});
    head.push_back({"limited by"});
    head.push_back({"why"});
    Table(head);
    for (size_t i = 0; i < e_.report.candidates.size(); ++i) {
      const PlanCandidate& candidate = e_.report.candidates[i];
      const PlanDetail& detail = e_.details[i];
      const Plan& plan = candidate.plan;
      std::vector<Cell> row = {
          {NameOf(i), true},
          {std::to_string(RankCount(plan.mesh)), true},
          Known(static_cast<double>(detail.machines), std::to_string(detail.machines)),
          {MeshText(plan)},
          {std::to_string(plan.threads_per_rank), true},
          {std::to_string(plan.micro_batch) + " × " + std::to_string(plan.accumulation_steps),
           true},
          {std::to_string(BlocksWith(plan, "recompute")), true},
          {HumanBytes(TotalBytes(plan.prediction.memory_per_rank)), true},
          Known(plan.prediction.step_seconds, HumanSeconds(plan.prediction.step_seconds)),
          Known(detail.finish_seconds, HumanDuration(detail.finish_seconds))};
      if (priced) row.push_back(Known(detail.price, Money(detail.price, e_.currency)));
      if (metered)
        row.push_back(Known(detail.kilowatt_hours, KilowattHours(detail.kilowatt_hours)));
      row.push_back({detail.binding});
      row.push_back({candidate.chosen ? "chosen" : candidate.reason});
      Row("td", row, candidate.chosen ? "chosen" : candidate.feasible ? "" : "out");
    }
    CloseTable();
    page_.Close();
  }

  std::string LabelOf(size_t index) const {
    const Plan& plan = e_.report.candidates[index].plan;
    const int64_t ranks = RankCount(plan.mesh);
    return NameOf(index) + ": " + std::to_string(ranks) + (ranks == 1 ? " rank, " : " ranks, ") +
           std::to_string(plan.micro_batch) + " × " + std::to_string(plan.accumulation_steps);
  }

  void TimeBars() {
    std::vector<std::string> names;
    for (const TimeComponent& part : Components(plan().prediction.time)) {
      names.emplace_back(part.name);
    }
    std::vector<StackedBar> bars;
    for (size_t i = 0; i < e_.report.candidates.size(); ++i) {
      const PlanCandidate& candidate = e_.report.candidates[i];
      if (!candidate.feasible) continue;
      StackedBar bar{LabelOf(i), HumanSeconds(candidate.plan.prediction.step_seconds), {}};
      for (const TimeComponent& part : Components(candidate.plan.prediction.time)) {
        bar.parts.push_back(part.seconds);
      }
      bar.chosen = candidate.chosen;
      bars.push_back(std::move(bar));
    }
    Section("Time of a step");
    AddStackedBars(page_, "Time of a step by part", names, bars, 1, HumanSeconds);
    page_.Close();
  }

  void MemoryBars() {
    std::vector<std::string> names;
    for (const MemoryComponent& part : Components(plan().prediction.memory_per_rank)) {
      names.emplace_back(part.name);
    }
    std::vector<StackedBar> bars;
    int64_t most = 0;
    for (size_t i = 0; i < e_.report.candidates.size(); ++i) {
      const PlanCandidate& candidate = e_.report.candidates[i];
      const MemoryBreakdown& memory = candidate.plan.prediction.memory_per_rank;
      StackedBar bar{LabelOf(i), HumanBytes(TotalBytes(memory)), {}};
      for (const MemoryComponent& part : Components(memory)) {
        bar.parts.push_back(static_cast<double>(part.bytes));
      }
      most = std::max(most, TotalBytes(memory));
      bar.limit = static_cast<double>(e_.details[i].memory_limit_bytes);
      if (!candidate.feasible) bar.end_label += " ✗";
      bar.chosen = candidate.chosen;
      bars.push_back(std::move(bar));
    }
    double unit = 1024.0 * 1024;
    if (most > int64_t{2} << 30) unit *= 1024;
    Section("Memory of the fullest rank");
    page_.Add("p", {{"class", "soft"}},
              "A rank of the chosen plan may have " +
                  HumanBytes(e_.details.front().memory_limit_bytes) +
                  "; limits within the chart are dashed lines. ✗: does not fit.");
    AddStackedBars(page_, "Memory of a rank by part", names, bars, unit, BytesText);
    page_.Close();
  }

  void TimelineChart() {
    const Timeline& timeline = e_.timeline;
    Section("One step, pass by pass");
    std::string text = timeline.schedule.empty()
                           ? "No pipeline: every rank makes its micro-batches one after the other"
                           : "The " + timeline.schedule +
                                 " schedule with the predicted times of its stages; ranks wait " +
                                 Percent(timeline.idle_share, 1) + " of the time";
    if (timeline.micro_batches_shown < timeline.micro_batches) {
      text += ". Shown: the first " + std::to_string(timeline.micro_batches_shown) + " of " +
              std::to_string(timeline.micro_batches) + " micro-batches";
    }
    page_.Add("p", {{"class", "soft"}}, text + ".");
    AddTimeline(page_, timeline);
    page_.Close();
  }

  void SensitivityChart() {
    if (e_.sensitivity.empty()) return;
    Section("What 10 % more would be worth");
    page_.Add("p", {{"class", "soft"}}, "Gain in throughput of the chosen plan as it is.");
    AddGains(page_, e_.sensitivity);
    page_.Close();
  }

  void Alternatives() {
    if (e_.alternatives.empty()) return;
    Section("Other ways")
        .Add("p", {{"class", "soft"}},
             "Each by itself added to the job, at its best; or the first reason "
             "why it does not go.");
    Table({{"way"}, {"lines of the job"}, {"memory/rank", true}, {"step", true}, {"why not"}});
    for (const Alternative& way : e_.alternatives) {
      Row("td",
          {{way.name},
           {way.lines},
           Known(static_cast<double>(way.memory_bytes), HumanBytes(way.memory_bytes)),
           Known(way.step_seconds, HumanSeconds(way.step_seconds)),
           {way.reason}},
          way.fits ? "" : "out");
    }
    CloseTable();
    page_.Close();
  }

  void Frontier() {
    if (e_.frontier.empty()) return;
    Section("Throughput against " + e_.device + "s");
    AddThroughputPlot(page_, e_);
    page_.Close();
    const bool priced = std::any_of(e_.frontier.begin(), e_.frontier.end(),
                                    [](const FrontierPoint& point) { return point.price > 0; });
    if (priced) {
      Section("Price of the run against its time");
      AddPricePlot(page_, e_);
      page_.Close();
    }
    page_.Open("section");
    Table({{"machines"},
           {"may use", true},
           {"uses", true},
           {"ranks", true},
           {"of them"},
           {"tokens/s", true},
           {"all steps", true},
           {"price", true},
           {"energy", true},
           {""}});
    for (const FrontierPoint& point : e_.frontier) {
      const bool fits = point.reason.empty();
      std::string why = point.on_frontier ? "best for this many" : "";
      if (point.cheapest) why += why.empty() ? "cheapest" : ", cheapest";
      Row("td",
          {{point.machines},
           {std::to_string(point.devices), true},
           Known(static_cast<double>(point.devices_used), std::to_string(point.devices_used)),
           Known(static_cast<double>(point.ranks), std::to_string(point.ranks)),
           {point.mesh},
           Known(point.tokens_per_second, HumanCount(point.tokens_per_second)),
           Known(point.finish_seconds, HumanDuration(point.finish_seconds)),
           Known(point.price, Money(point.price, e_.currency)),
           Known(point.kilowatt_hours, KilowattHours(point.kilowatt_hours)),
           {fits ? why : point.reason}},
          fits ? "" : "out");
    }
    CloseTable();
    page_.Close();
  }

  /// What the bars show, to copy.
  void Numbers() {
    page_.Open("details").Add("summary", {}, "Every bar in numbers");
    std::vector<Cell> head = {{"plan", true}};
    for (const TimeComponent& part : Components(plan().prediction.time)) {
      head.push_back({std::string(part.name), true});
    }
    for (const MemoryComponent& part : Components(plan().prediction.memory_per_rank)) {
      head.push_back({std::string(part.name), true});
    }
    Table(head);
    for (size_t i = 0; i < e_.report.candidates.size(); ++i) {
      const PlanCandidate& candidate = e_.report.candidates[i];
      std::vector<Cell> row = {{NameOf(i), true}};
      for (const TimeComponent& part : Components(candidate.plan.prediction.time)) {
        row.push_back({candidate.feasible ? HumanSeconds(part.seconds) : "–", true});
      }
      for (const MemoryComponent& part : Components(candidate.plan.prediction.memory_per_rank)) {
        row.push_back({HumanBytes(part.bytes), true});
      }
      Row("td", row, candidate.chosen ? "chosen" : candidate.feasible ? "" : "out");
    }
    CloseTable();
    page_.Close();
  }

  const PlanExplanation& e_;
  const PlanCandidate& chosen_;
  Markup page_;
};

}  // namespace

std::string HtmlReport(const PlanExplanation& explanation) {
  return HtmlWriter(explanation).Page();
}

}  // namespace weft::planner
