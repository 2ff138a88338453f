#pragma once

#include <string_view>

#include "coordinator/planner/cluster/accelerator.h"
#include "coordinator/planner/cluster/software_stack.h"

namespace weft::planner {

/// What the times of products of one precision share.
class ProductRates {
 public:
  /// Rates of a precision that the device has.
  ProductRates(const AcceleratorSpec& device, const SoftwareStack& stack,
               std::string_view precision);

  /// Seconds of a product [m, k] x [k, n], `batch` of them in one kernel: tiles in waves over the
  /// multiprocessors, or its bytes. A tile costs k plus a start of kTileStart elements.
  double Seconds(double m, double n, double k, double batch = 1) const;

 private:
  double multiprocessors_;
  double operand_;  ///< Bytes.
  double bandwidth_;
  double rate_ = 0;
};

/// ProductRates::Seconds() of one product.
double ProductSeconds(const AcceleratorSpec& device, const SoftwareStack& stack,
                      std::string_view precision, double m, double n, double k, double batch = 1);

}  // namespace weft::planner
