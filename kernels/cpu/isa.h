#pragma once

#include <cstdint>
#include <string_view>

namespace weft::kernels::cpu {

/// Instruction sets that kernels are compiled for, each including the ones before it.
enum class Isa : uint8_t {
  kBaseline,    ///< What every CPU of the architecture has (x86-64: SSE2).
  kAvx2,        ///< AVX2, FMA and F16C.
  kAvx512,      ///< AVX-512 F, BW, VL and DQ.
  kAvx512Bf16,  ///< and AVX512_BF16.
  kAmx,         ///< and AMX tiles with bf16, which the kernel lets this process use.
};

/// "baseline", "avx2", "avx512", "avx512_bf16" or "amx".
std::string_view IsaName(Isa isa);

/// The widest set this CPU and operating system offer, found once. Thread-safe.
Isa DetectedIsa();

/// The set this process starts with: DetectedIsa(), or less when the environment variable WEFT_ISA
/// names less. A name that is unknown or more than the CPU has is reported once and ignored.
/// oneDNN obeys it too. Thread-safe.
Isa ProcessIsa();

/// The set in use: ProcessIsa(), unless a test changed it. Thread-safe.
Isa ActiveIsa();

/// Puts another set in use for as long as it lives; must not exceed DetectedIsa(). For tests; no
/// kernel may run meanwhile in another thread.
class ScopedIsa {
 public:
  explicit ScopedIsa(Isa isa);
  ~ScopedIsa();
  ScopedIsa(const ScopedIsa&) = delete;
  ScopedIsa& operator=(const ScopedIsa&) = delete;

 private:
  Isa previous_;
};

}  // namespace weft::kernels::cpu

/// Declares the table of functions `Table` (a struct of function pointers) that each compilation of
/// an <op>_simd.cc defines as `const Table kTable` in its namespace WEFT_ISA, and PickTable(),
/// which returns the one for ActiveIsa(). Use in namespace weft::kernels::cpu.
#define WEFT_ISA_TABLE(Table)         \
  namespace baseline {                \
  extern const Table k##Table;        \
  }                                   \
  namespace avx2 {                    \
  extern const Table k##Table;        \
  }                                   \
  namespace avx512 {                  \
  extern const Table k##Table;        \
  }                                   \
  inline const Table& Pick##Table() { \
    Isa isa = ActiveIsa();            \
    if (isa >= Isa::kAvx512) {        \
      return avx512::k##Table;        \
    }                                 \
    if (isa == Isa::kAvx2) {          \
      return avx2::k##Table;          \
    }                                 \
    return baseline::k##Table;        \
  }
