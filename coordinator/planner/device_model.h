#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/model/precision.h"
#include "common/spec/cluster_spec.h"
#include "coordinator/planner/cluster/accelerator.h"
#include "coordinator/planner/cluster/collectives.h"
#include "coordinator/planner/cluster/software_stack.h"

namespace weft::planner {

/// The accelerator of the tables that a GPU is: by its name, among those by its memory and slot,
/// or, where the tables do not know it, one of its compute capability.
const AcceleratorSpec& AcceleratorOf(const DeviceSpec& device);

/// Whether a GPU multiplies numbers in this format.
bool Multiplies(const DeviceSpec& device, const ProductFormat& format);

/// How fast a GPU is in our hands: the step model of the cluster planner (cluster/step_model.h) for
/// the accelerator that it is, corrected by what its worker measured.
class DeviceModel {
 public:
  explicit DeviceModel(const DeviceSpec& device);

  /// Seconds of a product [m, k] x [k, n] with operands of this precision (GemmRate::precision):
  /// the model's time of tiles and waves, times the mean factor between measured and modelled time
  /// of the products that were measured, weighted by nearness of the logarithms of their sizes
  /// (Shepard 1968). A precision that was not measured has the factors of bf16.
  double ProductSeconds(std::string_view precision, double m, double n, double k) const;

  /// Whether products of that name (GemmRate::precision) were measured.
  bool HasMeasured(std::string_view precision) const;

  /// FLOP/s of fused attention, forward.
  double AttentionFlopsPerSecond(std::string_view precision) const;

  /// Bytes per second that kernels without products get of the device's memory.
  double MemoryBytesPerSecond() const;

  /// Bytes per second each way between the device and pinned memory of its machine.
  double HostLinkBytesPerSecond() const { return host_link_bytes_per_second_; }

  /// Seconds of an all-reduce over `ranks`, at least `on_machine` of them on each machine that has
  /// any. Between machines a rank has `network_bytes_per_second`; each message takes
  /// `more_latency_seconds` longer than the stack says.
  double AllReduceSeconds(int64_t ranks, int64_t on_machine, double network_bytes_per_second,
                          double bytes, double more_latency_seconds = 0) const;
  /// Seconds for what a rank has for all of `ranks`, itself among them; `on_machine` are on its
  /// machine.
  double AllToAllSeconds(int64_t ranks, int64_t on_machine, double network_bytes_per_second,
                         double bytes, double more_latency_seconds = 0) const;

  const SoftwareStack& stack() const { return stack_; }
  /// "its measurements and those of H100-SXM" or "the tables for H100-SXM".
  std::string Source() const;

 private:
  /// A measured product.
  struct Correction {
    std::string precision;
    double m, n, k;  ///< Logarithms.
    double factor;   ///< Logarithm of measured over modelled time.
  };

  double Modelled(std::string_view precision, double m, double n, double k) const;
  double CorrectionOf(std::string_view precision, double m, double n, double k) const;
  /// The accelerator's with as fast a network, and messages that take so much longer.
  CollectiveLinks WithNetwork(double bytes_per_second, double more_latency_seconds) const;

  AcceleratorSpec accelerator_;
  SoftwareStack stack_;
  std::vector<Correction> corrections_;
  double copy_bytes_per_second_ = 0;
  double host_link_bytes_per_second_ = 0;
};

}  // namespace weft::planner
