#include "cli/follow.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "cli/exit_code.h"
#include "cli/output.h"
#include "cli/terminal_text.h"
#include "cli/text_columns.h"
#include "cli/time_ledger.h"
#include "common/model/technique_cost.h"
#include "common/spec/instruction_data.h"
#include "common/spec/phases.h"
#include "proto/convert.h"

namespace weft::cli {
namespace {

constexpr int kPlainLines = 20;

constexpr std::string_view kGap = "  ";

std::vector<std::string> LossParts(const v1::Progress& progress) {
  std::vector<std::string> parts = {"loss " + FixedText(progress.loss(), 4)};
  if (progress.has_accuracy()) parts.push_back("accuracy " + PercentText(progress.accuracy()));
  if (progress.has_validation_loss()) {
    std::string validation = "validation " + FixedText(progress.validation_loss(), 4);
    if (progress.has_validation_accuracy()) {
      validation += " (" + PercentText(progress.validation_accuracy()) + ")";
    }
    parts.push_back(std::move(validation));
  }
  return parts;
}

/// "adapter_loss_nats: french 2.3100, law 2.2450" of each number that techniques measure of several
/// parts of the training.
std::vector<std::string> PartLines(const v1::Progress& progress) {
  const auto& metrics = progress.technique_metrics();
  std::map<std::string, std::string> lines;
  for (const auto& [name, value] : std::map<std::string, double>(metrics.begin(), metrics.end())) {
    const size_t end = name.find('/');
    if (end == std::string::npos) continue;
    std::string& line = lines[name.substr(0, end)];
    line += (line.empty() ? " " : ", ") + name.substr(end + 1) + " " + FixedText(value, 4);
  }
  std::vector<std::string> list;
  for (const auto& [metric, parts] : lines) list.push_back(metric + ":" + parts);
  return list;
}

/// The phase that runs, is next or was the last, from 0; 0 for a job without phases.
int PhaseOf(const v1::Job& job) {
  const auto completed =
      std::count_if(job.attempts().begin(), job.attempts().end(),
                    [](const v1::Attempt& attempt) { return attempt.reason() == v1::COMPLETED; });
  return std::clamp(static_cast<int>(completed), 0, std::max(job.spec().phases_size() - 1, 0));
}

std::string RateText(const v1::Progress& progress) {
  return HumanCount(progress.tokens_per_second()) + " tokens/s";
}

void Append(std::vector<std::string>& lines, std::vector<std::string> more) {
  std::move(more.begin(), more.end(), std::back_inserter(lines));
}

/// The block for a job, in lines of at most `width` columns.
std::vector<std::string> Block(const v1::Job& job, int width) {
  const v1::Progress& p = job.progress();
  std::vector<std::string> head = {job.id(), StateText(job)};
  if (std::string phase = PhaseText(job); !phase.empty()) head.push_back(std::move(phase));
  if (std::string part = PartText(job); !part.empty()) head.push_back(std::move(part));
  if (job.attempts_size() > 1) head.push_back("attempt " + std::to_string(job.attempts_size()));
  std::vector<std::string> lines = FlowParts(head, kGap, width);
  if (p.steps_total() > 0) {
    const double share = static_cast<double>(p.step()) / static_cast<double>(p.steps_total());
    std::vector<std::string> tail = {
        FixedText(share * 100, 0) + "%",
        "step " + std::to_string(p.step()) + "/" + std::to_string(p.steps_total())};
    if (p.eta_seconds() > 0 && !IsTerminal(job.state())) {
      tail.push_back(HumanDuration(p.eta_seconds()) + " left");
    }
    constexpr int kBrackets = 2, kShortestBar = 10, kLongestBar = 40;
    int taken = kBrackets + 1;
    for (const std::string& part : tail) taken += CountColumns(part);
    taken += static_cast<int>(kGap.size() * (tail.size() - 1));
    const int bar = std::clamp(width - taken,
                               std::min(kShortestBar, std::max(width - kBrackets, 1)), kLongestBar);
    tail.front() = ProgressBar(share, bar) + " " + tail.front();
    Append(lines, FlowParts(tail, kGap, width));
    if (p.step() > 0) {
      std::vector<std::string> numbers = LossParts(p);
      numbers.push_back("lr " + FixedText(p.learning_rate(), 6));
      numbers.push_back(RateText(p));
      Append(lines, FlowParts(numbers, kGap, width));
      constexpr std::string_view kLabel = "loss ";
      constexpr int kLongestLine = 60;
      const std::vector<double> losses(p.recent_losses().begin(), p.recent_losses().end());
      const int cells = std::min(width - static_cast<int>(kLabel.size()), kLongestLine);
      if (cells > 0) lines.push_back(std::string(kLabel) + Sparkline(losses, cells));
    }
  }
  // What a job ended with is shown whole; nothing is drawn over it any more.
  if (IsTerminal(job.state())) {
    Append(lines, FlowWords(job.message(), width));
    if (job.has_ledger()) Append(lines, FlowWords("time " + TimeText(job.ledger()), width));
  } else if (!job.message().empty()) {
    lines.push_back(CutToColumns(job.message(), width));
  }
  return lines;
}

}  // namespace

std::string Sparkline(const std::vector<double>& values, int width) {
  static const char* const kBars[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  std::vector<double> finite;
  std::copy_if(values.begin(), values.end(), std::back_inserter(finite),
               [](double v) { return std::isfinite(v); });
  if (finite.empty() || width <= 0) return "";
  auto cells = std::min<size_t>(static_cast<size_t>(width), finite.size());
  std::vector<double> means(cells);
  for (size_t i = 0; i < cells; ++i) {
    size_t begin = i * finite.size() / cells, end = (i + 1) * finite.size() / cells;
    double sum = 0;
    for (size_t k = begin; k < end; ++k) sum += finite[k];
    means[i] = sum / static_cast<double>(end - begin);
  }
  auto [low, high] = std::minmax_element(means.begin(), means.end());
  double span = std::max(*high - *low, 1e-12);
  std::string line;
  for (double mean : means) {
    line += kBars[std::clamp(static_cast<int>((mean - *low) / span * 7.999), 0, 7)];
  }
  return line;
}

std::string ProgressBar(double share, int width) {
  auto filled = static_cast<int>(std::clamp(share, 0.0, 1.0) * width + 1e-9);
  return "[" + std::string(filled, '#') + std::string(width - filled, '.') + "]";
}

std::string PercentText(double share) {
  return FixedText(share * 100, 1) + "%";
}

std::string ValidationText(const v1::Job& job) {
  const v1::Progress& progress = job.progress();
  const std::string loss = FixedText(progress.validation_loss(), 4);
  if (!progress.has_validation_accuracy()) {
    const bool of_pairs = job.spec().data().format() == kPreferenceFormat;
    return loss + (of_pairs ? " nats/pair" : " nats/token");
  }
  return "loss " + loss + ", accuracy " + PercentText(progress.validation_accuracy());
}

ScreenSize ReadScreenSize() {
  ScreenSize size;
  winsize window{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &window) != 0) return size;
  if (window.ws_col > 0) size.columns = window.ws_col;
  if (window.ws_row > 0) size.rows = window.ws_row;
  return size;
}

std::string PhaseText(const v1::Job& job) {
  const int count = job.spec().phases_size();
  if (count == 0) return "";
  const int phase = PhaseOf(job);
  return PhaseTitle(static_cast<size_t>(phase), static_cast<size_t>(count),
                    job.spec().phases(phase).name());
}

std::string PartText(const v1::Job& job) {
  const v1::Progress& progress = job.progress();
  if (progress.step() == 0 || !job.has_spec()) return "";
  const Result<JobSpec> spec = FromProto<JobSpec>(job.spec());
  if (!spec.ok()) return "";  // of a coordinator of another version
  const auto phase = static_cast<size_t>(PhaseOf(job));
  const int64_t step = progress.step() - StepsBefore(*spec, phase);
  if (step <= 0) return "";
  const auto& metrics = progress.technique_metrics();
  return PartOfTraining(JobOfPhase(*spec, phase), step - 1, {metrics.begin(), metrics.end()});
}

std::string StateText(const v1::Job& job) {
  std::string text = v1::JobState_Name(job.state());
  if (job.reason() != v1::REASON_UNSPECIFIED && job.reason() != v1::COMPLETED) {
    text += " (" + v1::Reason_Name(job.reason()) + ")";
  }
  return text;
}

FollowView::FollowView(std::ostream& out, bool terminal,
                       std::function<ScreenSize()> read_screen_size)
    : out_(out), terminal_(terminal), read_screen_size_(std::move(read_screen_size)) {}

void FollowView::Update(const v1::Job& job) {
  if (terminal_) {
    Draw(job);
  } else {
    PrintPlain(job);
  }
}

void FollowView::Finish() {
  drawn_columns_.clear();
  out_.flush();
}

void FollowView::Draw(const v1::Job& job) {
  const ScreenSize size = read_screen_size_();
  // The last column stays free: some terminals break a line that fills it.
  const int width = std::max(size.columns - 1, 1);
  std::vector<std::string> lines = Block(job, width);
  // Rows that have left the screen cannot be drawn over. The cursor takes the last one.
  if (!IsTerminal(job.state())) {
    lines.resize(std::min(lines.size(), static_cast<size_t>(std::max(size.rows - 1, 1))));
  }
  // A terminal that has become narrower shows a line of the block in several rows.
  int rows = 0;
  for (const int columns : drawn_columns_) {
    rows += std::max((columns + size.columns - 1) / size.columns, 1);
  }
  rows = std::min(rows, size.rows - 1);
  if (rows > 0) out_ << "\x1b[" << rows << 'A';
  // A shorter block leaves lines of the longer one before it: clear to the end of the screen.
  out_ << "\r\x1b[J";
  drawn_columns_.clear();
  for (const std::string& line : lines) {
    out_ << line << '\n';
    drawn_columns_.push_back(CountColumns(line));
  }
  out_ << std::flush;
}

void FollowView::PrintPlain(const v1::Job& job) {
  const v1::Progress& p = job.progress();
  int64_t epoch = job.attempts().empty() ? 0 : job.attempts(job.attempts_size() - 1).epoch();
  if (job.state() != last_state_ || job.message() != last_message_ || epoch != last_epoch_) {
    out_ << job.id() << ' ' << StateText(job);
    if (epoch > 1) out_ << " attempt " << epoch;
    if (const std::string phase = PhaseText(job); !phase.empty()) {
      out_ << ' ' << ForOneLine(phase);
    }
    if (!job.message().empty()) out_ << ": " << ForOneLine(job.message());
    out_ << '\n';
    last_state_ = job.state();
    last_message_ = job.message();
    if (epoch != last_epoch_) next_step_ = 0;
    last_epoch_ = epoch;
  }
  if (p.step() > 0 && p.step() >= next_step_) {
    out_ << "step " << p.step() << '/' << p.steps_total();
    for (const std::string& part : LossParts(p)) out_ << kGap << part;
    out_ << kGap << RateText(p);
    if (p.eta_seconds() > 0) out_ << "  " << HumanDuration(p.eta_seconds()) << " left";
    out_ << '\n';
    if (const std::string part = PartText(job); !part.empty()) out_ << kGap << part << '\n';
    for (const std::string& line : PartLines(p)) out_ << kGap << ForOneLine(line) << '\n';
    next_step_ =
        std::min(p.steps_total(), p.step() + std::max<int64_t>(p.steps_total() / kPlainLines, 1));
    if (p.step() >= p.steps_total()) next_step_ = p.steps_total() + 1;
  }
  // A step that ends a phase has two validation losses: the next phase begins with its own.
  const bool newer = p.validation_step() > last_validation_step_ ||
                     (p.validation_step() == last_validation_step_ &&
                      p.validation_loss() != last_validation_loss_);
  if (p.has_validation_loss() && newer) {
    out_ << "validation after step " << p.validation_step() << ": " << ValidationText(job) << '\n';
    last_validation_step_ = p.validation_step();
    last_validation_loss_ = p.validation_loss();
  }
  if (p.has_checkpoint_step() && p.checkpoint_step() > last_checkpoint_step_) {
    out_ << "checkpoint verified at step " << p.checkpoint_step() << '\n';
    last_checkpoint_step_ = p.checkpoint_step();
  }
  if (IsTerminal(job.state()) && job.has_ledger()) {
    out_ << "time: " << TimeText(job.ledger()) << '\n';
  }
  out_.flush();
}

}  // namespace weft::cli
