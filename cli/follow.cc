#include "cli/follow.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>

#include "cli/exit_code.h"
#include "cli/output.h"

namespace weft::cli {
namespace {

constexpr int kPlainLines = 20;

std::string LossText(const v1::Progress& progress) {
  std::string text = "loss " + FixedText(progress.loss(), 4);
  if (progress.has_accuracy()) text += "  accuracy " + PercentText(progress.accuracy());
  if (progress.has_validation_loss()) {
    text += "  validation " + FixedText(progress.validation_loss(), 4);
  }
  if (progress.has_validation_accuracy()) {
    text += " (" + PercentText(progress.validation_accuracy()) + ")";
  }
  return text;
}

std::string RateText(const v1::Progress& progress) {
  return HumanCount(progress.tokens_per_second()) + " tokens/s";
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

std::string ValidationText(const v1::Progress& progress) {
  const std::string loss = FixedText(progress.validation_loss(), 4);
  if (!progress.has_validation_accuracy()) return loss + " nats/token";
  return "loss " + loss + ", accuracy " + PercentText(progress.validation_accuracy());
}

int TerminalWidth() {
  winsize size{};
  return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

std::string StateText(const v1::Job& job) {
  std::string text = v1::JobState_Name(job.state());
  if (job.reason() != v1::REASON_UNSPECIFIED && job.reason() != v1::COMPLETED) {
    text += " (" + v1::Reason_Name(job.reason()) + ")";
  }
  return text;
}

FollowView::FollowView(std::ostream& out, bool terminal, int width)
    : out_(out), terminal_(terminal), width_(std::max(width, 40)) {}

void FollowView::Update(const v1::Job& job) {
  if (terminal_) {
    Draw(job);
  } else {
    PrintPlain(job);
  }
}

void FollowView::Finish() {
  drawn_lines_ = 0;
  out_.flush();
}

void FollowView::Draw(const v1::Job& job) {
  const v1::Progress& p = job.progress();
  std::vector<std::string> lines;
  std::string head = job.id() + "  " + StateText(job);
  if (job.attempts_size() > 1) head += "  attempt " + std::to_string(job.attempts_size());
  lines.push_back(head);
  if (p.steps_total() > 0) {
    double share = static_cast<double>(p.step()) / static_cast<double>(p.steps_total());
    std::string tail = " " + FixedText(share * 100, 0) + "%  step " + std::to_string(p.step()) +
                       "/" + std::to_string(p.steps_total());
    if (p.eta_seconds() > 0 && !IsTerminal(job.state())) {
      tail += "  " + HumanDuration(p.eta_seconds()) + " left";
    }
    int bar = std::clamp(width_ - static_cast<int>(tail.size()) - 3, 10, 40);
    lines.push_back(ProgressBar(share, bar) + tail);
    if (p.step() > 0) {
      lines.push_back(LossText(p) + "  lr " + FixedText(p.learning_rate(), 6) + "  " + RateText(p));
      std::vector<double> losses(p.recent_losses().begin(), p.recent_losses().end());
      lines.push_back("loss " + Sparkline(losses, std::min(width_ - 6, 60)));
    }
  }
  if (!job.message().empty()) lines.push_back(job.message().substr(0, width_ - 1));
  if (drawn_lines_ > 0) out_ << "\x1b[" << drawn_lines_ << "A";
  for (const std::string& line : lines) out_ << "\x1b[2K" << line << '\n';
  // A shorter block leaves lines of the longer one before it: clear to the end of the screen.
  out_ << "\x1b[J" << std::flush;
  drawn_lines_ = static_cast<int>(lines.size());
}

void FollowView::PrintPlain(const v1::Job& job) {
  const v1::Progress& p = job.progress();
  int64_t epoch = job.attempts().empty() ? 0 : job.attempts(job.attempts_size() - 1).epoch();
  if (job.state() != last_state_ || job.message() != last_message_ || epoch != last_epoch_) {
    out_ << job.id() << ' ' << StateText(job);
    if (epoch > 1) out_ << " attempt " << epoch;
    if (!job.message().empty()) out_ << ": " << job.message();
    out_ << '\n';
    last_state_ = job.state();
    last_message_ = job.message();
    if (epoch != last_epoch_) next_step_ = 0;
    last_epoch_ = epoch;
  }
  if (p.step() > 0 && p.step() >= next_step_) {
    out_ << "step " << p.step() << '/' << p.steps_total() << "  " << LossText(p) << "  "
         << RateText(p);
    if (p.eta_seconds() > 0) out_ << "  " << HumanDuration(p.eta_seconds()) << " left";
    out_ << '\n';
    next_step_ =
        std::min(p.steps_total(), p.step() + std::max<int64_t>(p.steps_total() / kPlainLines, 1));
    if (p.step() >= p.steps_total()) next_step_ = p.steps_total() + 1;
  }
  if (p.has_validation_loss() && p.validation_step() > last_validation_step_) {
    out_ << "validation after step " << p.validation_step() << ": " << ValidationText(p) << '\n';
    last_validation_step_ = p.validation_step();
  }
  if (p.has_checkpoint_step() && p.checkpoint_step() > last_checkpoint_step_) {
    out_ << "checkpoint verified at step " << p.checkpoint_step() << '\n';
    last_checkpoint_step_ = p.checkpoint_step();
  }
  out_.flush();
}

}  // namespace weft::cli
