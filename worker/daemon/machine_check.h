#pragma once

#include <cstdint>
#include <string>

#include "common/spec/field.h"
#include "common/status.h"

namespace weft::daemon {

/// What a check of a machine found.
struct MachineCheck {
  std::string error;
  int64_t device = -1;
  double flops_per_second = 0;
  double memory_bytes_per_second = 0;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("error", "What is wrong; empty: nothing was found."), self.error);
    visit(Field("device", "Position of the GPU that it is wrong with; -1: the machine.")
              .Range(-1, 1023),
          self.device);
    visit(Field("flops_per_second", "Of the product, on the slowest GPU where there are some.")
              .Unit("FLOP/s"),
          self.flops_per_second);
    visit(Field("memory_bytes_per_second", "Memory written and read.").Unit("bytes/s"),
          self.memory_bytes_per_second);
  }
};

/// Multiplies matrices of small whole numbers, whose product is exact in any order of additions, on
/// each of the processors that this process may use, `cores` at most, and on each GPU that it sees;
/// writes patterns to memory and reads them back. A wrong number is an error in the result. Takes
/// half a second or so, and leaves CUDA contexts behind, so a daemon has it done by a process of
/// its own. The status is that of the check itself.
Result<MachineCheck> CheckMachine(int64_t cores);

/// The part of it on CUDA device `device`, with matrices of `side` rows and columns. The rate of
/// the product; sets the error of `check` where a number is wrong.
Result<double> CheckDevice(int device, int64_t side, MachineCheck& check);

/// What a product of whole numbers must be: x (m, k) times the transpose of w (n, k) is y (m, n).
/// Compares sums of each row with weights from 1 to 7 (Freivalds 1977, "Probabilistic machines can
/// use less running time"), in whole numbers, so that a single wrong number never passes. The first
/// row that is wrong; -1: none.
int64_t WrongRow(const float* x, const float* w, const float* y, int64_t m, int64_t n, int64_t k);

}  // namespace weft::daemon
