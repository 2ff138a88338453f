#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/spec/field.h"
#include "common/spec/precision_names.h"
#include "common/status.h"

namespace weft::planner {

/// Matrix products of one precision.
struct ProductPeak {
  std::string precision;
  double flops_per_second = 0;
  double sustained_share = 0.8;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("precision", "Of the operands.").OneOf(kProductRateNames).Required(),
          self.precision);
    visit(Field("flops_per_second", "As the maker says, dense.").Unit("FLOP/s").Range(1e9, 1e18),
          self.flops_per_second);
    visit(Field("sustained_share", "Of that, what the best shapes reach for minutes.").Range(0, 1),
          self.sustained_share);
  }
};

/// A kind of accelerator and the machine it usually sits in.
struct AcceleratorSpec {
  std::string name;
  std::string source;
  double multiprocessors = 1;
  double memory_bytes = 0;
  double memory_bytes_per_second = 0;
  std::vector<ProductPeak> products;
  double attention_share = 0.5;
  int64_t per_node = 8;
  double link_bytes_per_second = 0;
  double network_bytes_per_second = 0;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("name", "Its name.").Required(), self.name);
    visit(Field("source", "Source of the numbers."), self.source);
    visit(Field("multiprocessors", "Processors that tiles of a product are spread over.")
              .Range(1, 1e5),
          self.multiprocessors);
    visit(Field("memory_bytes", "Its memory.").Unit("bytes").Range(1e9, 1e13), self.memory_bytes);
    visit(Field("memory_bytes_per_second", "Of its memory.").Unit("bytes/s").Range(1e10, 1e14),
          self.memory_bytes_per_second);
    visit(Field("products", "Rates of matrix products."), self.products);
    visit(Field("attention_share",
                "Of the half-precision peak, what fused attention sustains, forward.")
              .Range(0.01, 1),
          self.attention_share);
    visit(Field("per_node", "Of them in a machine.").Range(1, 1024), self.per_node);
    visit(Field("link_bytes_per_second", "To the others of its machine, one direction.")
              .Unit("bytes/s")
              .Range(1e8, 1e14),
          self.link_bytes_per_second);
    visit(Field("network_bytes_per_second", "Its share of the machine's network, one direction.")
              .Unit("bytes/s")
              .Range(1e8, 1e13),
          self.network_bytes_per_second);
  }

  /// The peak of products with operands of this precision, or null.
  const ProductPeak* Find(std::string_view precision) const;
};

/// The built-in accelerators (data/accelerators.json).
const std::vector<AcceleratorSpec>& KnownAccelerators();

/// kNotFound names those that are known.
Result<AcceleratorSpec> FindAccelerator(std::string_view name);

}  // namespace weft::planner
