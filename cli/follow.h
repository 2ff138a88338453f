#pragma once

#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "weft/v1/coordinator.pb.h"

namespace weft::cli {

/// Size of a terminal in characters.
struct ScreenSize {
  int columns = 80;
  int rows = 24;
};

/// Size of the terminal on standard output; 80 x 24 when it is none.
ScreenSize ReadScreenSize();

/// Shows a job while it runs. On a terminal: one block that is redrawn, with state, progress bar,
/// loss, tokens/s, time left and a sparkline of the loss, in lines that fit the terminal as it is
/// at each redraw. Elsewhere: a plain line for each change of state and about every twentieth of
/// the job. Not thread-safe.
class FollowView {
 public:
  /// `terminal`: redraw in place with ANSI sequences, on a screen of the size that
  /// `read_screen_size` returns at that moment.
  FollowView(std::ostream& out, bool terminal,
             std::function<ScreenSize()> read_screen_size = ReadScreenSize);

  /// Shows the job as it is now.
  void Update(const v1::Job& job);

  /// Leaves the cursor below what was drawn.
  void Finish();

 private:
  void Draw(const v1::Job& job);
  void PrintPlain(const v1::Job& job);

  std::ostream& out_;
  bool terminal_;
  std::function<ScreenSize()> read_screen_size_;
  std::vector<int> drawn_columns_;  ///< Of each line of the block that was drawn last.
  v1::JobState last_state_ = v1::JOB_STATE_UNSPECIFIED;
  std::string last_message_;
  int64_t last_epoch_ = 0;
  int64_t next_step_ = 0;
  int64_t last_validation_step_ = 0;
  double last_validation_loss_ = 0;
  int64_t last_checkpoint_step_ = 0;
};

/// `width` block characters, lowest value lowest; an empty string for no values.
std::string Sparkline(const std::vector<double>& values, int width);

/// "91.3%" of 0.913.
std::string PercentText(double share);

/// The newest validation: its loss, and the accuracy where there is one.
std::string ValidationText(const v1::Job& job);

/// "[#####.....]" with `width` cells between the brackets.
std::string ProgressBar(double share, int width);

/// "phase 2 of 3 (wide)": the one that runs, is next or was the last; empty for a job without
/// phases, and in lists.
std::string PhaseText(const v1::Job& job);

/// "round 2 of 5, step 40 of 97, density 64.0%": where the newest step is in a training that is
/// several in turn; empty for others, before the first step, and in lists.
std::string PartText(const v1::Job& job);

/// "RUNNING", "QUEUED (WAITING_FOR_WORKERS)"
std::string StateText(const v1::Job& job);

}  // namespace weft::cli
