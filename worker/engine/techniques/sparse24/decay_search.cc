#include "worker/engine/techniques/sparse24/decay_search.h"

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <sstream>

#include "common/log.h"

namespace weft::engine {
namespace {

// Published decays are between these: 6e-6 (BERT) to 6e-3 (the code for DeiT-B).
constexpr std::array<double, 7> kDecays = {1e-6, 5e-6, 2e-5, 1e-4, 5e-4, 2e-3, 1e-2};
static_assert(kDecays.size() + 1 == size_t{1} << (kDecaySearchRuns - 1), "runs halve the grid");

// Flip rates relative to those of dense training: healthy ones, and what is aimed at.
constexpr double kLeastRatio = 0.60, kRatio = 0.75, kMostRatio = 0.95;

// Two neighbours of the grid, and the ratios at them.
struct Bracket {
  int64_t low = -1, high = std::ssize(kDecays);
  double ratio_of_low = 0, ratio_of_high = 0;

  int64_t Middle() const { return (low + high) / 2; }
};

// What the sparse runs before `run` have left of the grid. A larger decay makes fewer flips.
Bracket Halve(std::span<const float> rates, int64_t run) {
  Bracket left;
  for (int64_t r = 1; r < run; ++r) {
    const int64_t middle = left.Middle();
    const double ratio = rates[0] > 0 ? static_cast<double>(rates[r]) / rates[0] : 1.0;
    if (ratio >= kRatio) {
      left.low = middle, left.ratio_of_low = ratio;
    } else {
      left.high = middle, left.ratio_of_high = ratio;
    }
  }
  return left;
}

std::string Rounded(double number) {
  std::ostringstream text;
  text << std::setprecision(2) << number;
  return text.str();
}

}  // namespace

std::string DoubtsOfSearch(std::span<const float> rates) {
  const std::string longer = "; hint: more train.sparsity.decay_search_steps";
  if (rates[0] <= 0) return "no mask changed in the dense run, so rates tell nothing" + longer;
  const Bracket left = Halve(rates, kDecaySearchRuns);
  const auto at_end = [](const char* end, double decay, double ratio) {
    return std::string("the search ended at its ") + end + " decay, " + Rounded(decay) +
           ", with which masks flip " + Rounded(ratio) +
           " times as often as in dense training, not 0.75 times; hint: set train.sparsity.decay, "
           "or more train.sparsity.decay_search_steps";
  };
  if (left.low < 0) return at_end("smallest", kDecays.front(), left.ratio_of_high);
  if (left.high == std::ssize(kDecays)) return at_end("largest", kDecays.back(), left.ratio_of_low);
  if (left.ratio_of_low <= kMostRatio || left.ratio_of_high >= kLeastRatio) return "";
  return "no run flipped masks 0.6 to 0.95 times as often as dense training" + longer;
}

double SearchedDecay(std::span<const float> rates, int64_t run) {
  const Bracket left = Halve(rates, run);
  if (run < kDecaySearchRuns) return kDecays[left.Middle()];
  if (left.low < 0) return kDecays.front();
  if (left.high == std::ssize(kDecays)) return kDecays.back();
  // Between the two in proportion, in the logarithm.
  const double share = (left.ratio_of_low - kRatio) / (left.ratio_of_low - left.ratio_of_high);
  return kDecays[left.low] * std::pow(kDecays[left.high] / kDecays[left.low], share);
}

Status DecaySearch::OnTraining(const TrainingParts& parts) {
  parts_ = parts;
  if (spec_.decay_search_steps == 0) return OkStatus();
  return first_.Allocate(parts, {.prefix = "sparse24/first/", .suffix = ""});
}

int64_t DecaySearch::RunOf(int64_t step) const {
  return spec_.decay_search_steps == 0
             ? kDecaySearchRuns
             : std::min(step / spec_.decay_search_steps, kDecaySearchRuns);
}

ScheduledStep DecaySearch::Scheduled(ScheduledStep place) const {
  return {.step = place.step - RunOf(place.step) * spec_.decay_search_steps,
          .steps = place.steps - DecaySearchSteps(spec_)};
}

Result<bool> DecaySearch::BeforeStep(int64_t step) {
  if (spec_.decay_search_steps == 0 || step % spec_.decay_search_steps != 0) return false;
  if (step > DecaySearchSteps(spec_)) return false;
  ProfileScope scope(parts_.context->profiler, "2:4 decay search");
  if (step == 0) {
    WEFT_RETURN_IF_ERROR(first_.Take());
    return false;
  }
  WEFT_RETURN_IF_ERROR(first_.Restore());
  WEFT_RETURN_IF_ERROR(parts_.begin_anew());
  if (step < DecaySearchSteps(spec_)) return true;
  WEFT_LOG_INFO << "decay of 2:4 masked weights: " << DecayOf(step);
  if (const std::string doubts = DoubtsOfSearch(rates_); !doubts.empty()) {
    WEFT_LOG_WARNING << "decay of 2:4 masked weights: " << doubts;
  }
  return true;
}

double DecaySearch::DecayOf(int64_t step) const {
  if (spec_.decay_search_steps == 0) return spec_.decay;
  const int64_t run = RunOf(step);
  return run == 0 ? 0 : SearchedDecay(rates_, run);
}

void DecaySearch::Observe(int64_t step, double rate) {
  const int64_t run = RunOf(step);
  if (run == kDecaySearchRuns) return;
  const int64_t steps = step + 1 - run * spec_.decay_search_steps;
  if (2 * steps > spec_.decay_search_steps) rates_[run] += static_cast<float>(rate);
}

std::vector<NamedTensor> DecaySearch::StateTensors() {
  if (spec_.decay_search_steps == 0) return {};
  std::vector<NamedTensor> tensors = first_.Named();
  tensors.push_back({.name = "sparse24/flip_rates_of_runs",
                     .view = {rates_.data(), DType::kF32, {kDecaySearchRuns}}});
  return tensors;
}

}  // namespace weft::engine
