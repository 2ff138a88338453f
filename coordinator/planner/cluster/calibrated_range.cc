#include "coordinator/planner/cluster/calibrated_range.h"

#include <algorithm>
#include <cstdio>
#include <utility>

namespace weft::planner {
namespace {

struct Number {
  std::string_view quantity;
  int64_t value;
};

struct Kind {
  std::string_view quantity;
  std::string value;
};

int64_t MillionParameters(const DecoderShape& model) {
  const BlockParameters block = ParametersOfBlock(model);
  const auto layers = static_cast<double>(model.layers);
  const auto table = static_cast<double>(model.vocabulary * model.width);
  return static_cast<int64_t>((layers * (block.dense + block.experts) + table) / 1e6);
}

std::vector<Number> Numbers(const ClusterRun& run) {
  return {{"million parameters", MillionParameters(run.model)},
          {"width", run.model.width},
          {"sequence length", run.model.sequence_length},
          {"devices", run.Devices()},
          {"tensor-parallel ranks", run.tensor},
          {"context-parallel ranks", run.context},
          {"data-parallel ranks", run.data},
          {"experts", run.model.experts},
          {"experts of a token", run.model.experts_per_token},
          {"expert-parallel ranks", run.expert},
          {"ranks of an expert's matrix", run.model.HasExperts() ? run.ExpertTensor() : 1},
          {"pipeline-parallel ranks", run.pipeline},
          {"stages a rank", run.stages_per_rank},
          {"micro-batch", run.micro_batch},
          {"micro-batches a step", run.global_batch / (run.data * run.micro_batch)}};
}

std::string Reach(bool crosses_machines) {
  return crosses_machines ? "between machines" : "within a machine";
}

std::vector<Kind> Kinds(const AcceleratorSpec& device, const ClusterRun& run) {
  const int64_t replica = run.tensor * run.context * run.data;
  return {{"accelerator", device.name},
          {"precision", run.precision},
          {"recomputation", std::string(NameOf(run.recomputation))},
          {"ZeRO stage", std::to_string(run.zero_stage)},
          {"tensor parallelism", Reach(run.tensor > device.per_node)},
          {"data parallelism", Reach(run.data * run.context > 1 && replica > device.per_node)}};
}

/// "1.5 times" for 3 and 2.
std::string Times(int64_t more, int64_t less) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.3g times",
                static_cast<double>(more) / static_cast<double>(less));
  return text;
}

std::string Listed(const std::set<std::string>& values) {
  std::string text;
  for (const std::string& value : values) text += (text.empty() ? "" : ", ") + value;
  return text;
}

}  // namespace

Extrapolation OutsideSpan(std::string_view quantity, int64_t value, int64_t low, int64_t high) {
  std::string measured;
  if (low <= high) measured = std::to_string(low);
  if (low < high) measured += " to " + std::to_string(high);
  if (0 < high && high < value) measured += "; " + Times(value, high) + " the most";
  if (0 < value && value < low) measured += "; the least is " + Times(low, value) + " as much";
  return OutsideKinds(quantity, std::to_string(value), measured);
}

Extrapolation OutsideKinds(std::string_view quantity, const std::string& value,
                           const std::string& measured) {
  return {quantity, std::string(quantity) + " " + value +
                        " (measured: " + (measured.empty() ? "none" : measured) + ")"};
}

CalibratedRange::CalibratedRange(const std::vector<MeasuredRun>& runs) {
  for (const MeasuredRun& measured : runs) {
    const std::vector<Number> numbers = Numbers(measured.run);
    spans_.resize(numbers.size());
    for (size_t i = 0; i < numbers.size(); ++i) {
      Span& span = spans_[i];
      const int64_t value = numbers[i].value;
      span = span.high < span.low ? Span{value, value}
                                  : Span{std::min(span.low, value), std::max(span.high, value)};
    }
    std::vector<Kind> kinds = Kinds(measured.device, measured.run);
    kinds_.resize(kinds.size());
    for (size_t i = 0; i < kinds.size(); ++i) kinds_[i].insert(std::move(kinds[i].value));
  }
}

std::vector<Extrapolation> CalibratedRange::Outside(const AcceleratorSpec& device,
                                                    const ClusterRun& run) const {
  std::vector<Extrapolation> outside;
  const std::vector<Number> numbers = Numbers(run);
  for (size_t i = 0; i < numbers.size(); ++i) {
    const Span span = i < spans_.size() ? spans_[i] : Span{};
    const int64_t value = numbers[i].value;
    if (span.low <= value && value <= span.high) continue;
    outside.push_back(OutsideSpan(numbers[i].quantity, value, span.low, span.high));
  }
  const std::vector<Kind> kinds = Kinds(device, run);
  for (size_t i = 0; i < kinds.size(); ++i) {
    const std::set<std::string> known = i < kinds_.size() ? kinds_[i] : std::set<std::string>();
    if (known.contains(kinds[i].value)) continue;
    outside.push_back(OutsideKinds(kinds[i].quantity, kinds[i].value, Listed(known)));
  }
  return outside;
}

}  // namespace weft::planner
