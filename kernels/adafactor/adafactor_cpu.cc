#include "kernels/adafactor/adafactor.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/adafactor/adafactor_check.h"
#include "kernels/adafactor/adafactor_simd.h"
#include "kernels/cpu/parallel.h"
#include "kernels/elementwise/elementwise_simd.h"
#include "kernels/norm_stat/norm_stat_simd.h"
#include "kernels/stochastic_round/stochastic_round_simd.h"

namespace weft::kernels::cpu {
namespace {

// Rows are treated in this many groups at most, whatever the number of threads, so that sums are
// always added in the same order.
constexpr int64_t kGroups = 64;

// Adafactor of one tensor, pass by pass.
class TensorUpdate {
 public:
  TensorUpdate(const AdafactorArgs& args, const AdafactorTensor& tensor)
      : args_(args),
        tensor_(tensor),
        kernels_(PickAdafactorKernels()),
        gradient_scale_(args.gate.factor == nullptr ? args.gradient_scale
                                                    : args.gradient_scale * *args.gate.factor),
        groups_(std::min(tensor.rows, kGroups)),
        row_factors_(static_cast<size_t>(tensor.rows), 1.0f),
        column_factors_(static_cast<size_t>(tensor.columns)) {}

  void Run() {
    const auto elements = static_cast<double>(tensor_.rows * tensor_.columns);
    UpdateMoments();
    const double rms_update = std::sqrt(
        SumOverRows([&](int64_t row) {
          const double factor = row_factors_[row];
          return factor * factor *
                 kernels_.update_squares(Gradient(row), column_factors_.data(), tensor_.columns);
        }) /
        elements);
    const double rms_parameter = std::sqrt(
        SumOverRows([&](int64_t row) {
          double sum = 0;
          int64_t non_finite = 0;
          PickNormStatKernels().block(ParameterRow(row), tensor_.columns, &sum, &non_finite);
          return sum;
        }) /
        elements);
    const double rate = static_cast<double>(args_.learning_rate) * tensor_.learning_rate_scale;
    const double relative = std::min(rate, 1 / std::sqrt(static_cast<double>(args_.step)));
    const double size =
        std::max(kSmallestScale, rms_parameter) * relative / std::max(1.0, rms_update / args_.clip);
    const auto decay = static_cast<float>(1 - rate * tensor_.weight_decay);
    ForEachGroup([&](int64_t, int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        float* parameter = ParameterRow(row);
        kernels_.apply(Gradient(row), column_factors_.data(), decay,
                       static_cast<float>(size * row_factors_[row]), tensor_.columns, parameter);
        RoundRow(row, parameter);
      }
    });
  }

 private:
  AdafactorGradient Gradient(int64_t row) const {
    return {tensor_.gradient + row * tensor_.columns, gradient_scale_, args_.gradient_limit};
  }

  // A row of the parameter, or a copy of it in f32 until the thread asks for another one.
  float* ParameterRow(int64_t row) const {
    if (tensor_.bf16_parameter == nullptr) return tensor_.parameter + row * tensor_.columns;
    static thread_local std::vector<float> wide;
    wide.resize(static_cast<size_t>(tensor_.columns));
    PickElementwiseKernels().bf16.to_f32(tensor_.bf16_parameter + row * tensor_.columns,
                                         wide.data(), tensor_.columns);
    return wide.data();
  }

  void RoundRow(int64_t row, const float* parameter) const {
    if (tensor_.bf16_parameter == nullptr) return;
    const auto blocks_of_a_row = static_cast<uint64_t>(tensor_.columns + 3) / 4;
    PickStochasticRoundKernels().run({args_.seed, args_.rounding_step, tensor_.rounding_site},
                                     static_cast<uint64_t>(row) * blocks_of_a_row, parameter,
                                     tensor_.bf16_parameter + row * tensor_.columns,
                                     tensor_.columns);
  }

  // Calls fn(group, first row, end of rows) for all groups in parallel.
  template <class Fn>
  void ForEachGroup(const Fn& fn) {
    ParallelFor(groups_, 1, [&](int64_t begin, int64_t end) {
      for (int64_t group = begin; group < end; ++group) {
        fn(group, tensor_.rows * group / groups_, tensor_.rows * (group + 1) / groups_);
      }
    });
  }

  template <class Fn>
  double SumOverRows(const Fn& of_row) {
    std::vector<double> sums(static_cast<size_t>(groups_), 0.0);
    ForEachGroup([&](int64_t group, int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) sums[group] += of_row(row);
    });
    double total = 0;
    for (double sum : sums) total += sum;
    return total;
  }

  // Both moments, and 1 / sqrt(V) as a product of a factor by row and one by column.
  void UpdateMoments() {
    const auto fresh = static_cast<float>(
        std::pow(static_cast<double>(args_.step), -static_cast<double>(args_.decay_exponent)));
    const auto columns = static_cast<size_t>(tensor_.columns);
    std::vector<float> sums(static_cast<size_t>(groups_) * columns, 0.0f);
    ForEachGroup([&](int64_t group, int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const double squares =
            kernels_.squares(Gradient(row), tensor_.columns, &sums[group * columns]);
        if (tensor_.rows == 1) continue;
        const double mean = squares / static_cast<double>(tensor_.columns) + kSmallestSquare;
        float& moment = tensor_.row_moment[row];
        moment += fresh * (static_cast<float>(mean) - moment);
      }
    });
    ParallelFor(tensor_.columns, 4096, [&](int64_t begin, int64_t end) {
      for (int64_t c = begin; c < end; ++c) {
        double sum = 0;
        for (int64_t group = 0; group < groups_; ++group) sum += sums[group * columns + c];
        const double mean = sum / static_cast<double>(tensor_.rows) + kSmallestSquare;
        float& moment = tensor_.column_moment[c];
        moment += fresh * (static_cast<float>(mean) - moment);
        column_factors_[c] = 1 / std::sqrt(moment);
      }
    });
    if (tensor_.rows == 1) return;
    double mean_row = 0;
    for (int64_t row = 0; row < tensor_.rows; ++row) mean_row += tensor_.row_moment[row];
    mean_row /= static_cast<double>(tensor_.rows);
    for (int64_t row = 0; row < tensor_.rows; ++row) {
      row_factors_[row] = static_cast<float>(std::sqrt(mean_row / tensor_.row_moment[row]));
    }
  }

  const AdafactorArgs& args_;
  const AdafactorTensor& tensor_;
  const AdafactorKernels& kernels_;
  const float gradient_scale_;
  const int64_t groups_;
  std::vector<float> row_factors_;
  std::vector<float> column_factors_;
};

}  // namespace

Status Adafactor(const Stream& stream, const AdafactorArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckAdafactor(stream, args));
  if (args.gate.made != nullptr && *args.gate.made == 0) return OkStatus();
  for (const AdafactorTensor& tensor : args.tensors) TensorUpdate(args, tensor).Run();
  return OkStatus();
}

}  // namespace weft::kernels::cpu
