#include "kernels/cpu/isa.h"

#include <array>
#include <atomic>
#include <cstdlib>

#include <sys/syscall.h>
#include <unistd.h>

#include "common/check.h"
#include "common/log.h"

namespace weft::kernels::cpu {
namespace {

constexpr std::array<std::string_view, 5> kNames = {"baseline", "avx2", "avx512", "avx512_bf16",
                                                    "amx"};

#if defined(__x86_64__)
// Linux hands out the 8 KiB of tile state only to processes that ask for it.
bool RequestAmx() {
  constexpr long kArchReqXcompPerm = 0x1023;
  constexpr long kXfeatureTileData = 18;
  return syscall(SYS_arch_prctl, kArchReqXcompPerm, kXfeatureTileData) == 0;
}

Isa Detect() {
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") ||
      !__builtin_cpu_supports("f16c")) {
    return Isa::kBaseline;
  }
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
      !__builtin_cpu_supports("avx512vl") || !__builtin_cpu_supports("avx512dq")) {
    return Isa::kAvx2;
  }
  if (!__builtin_cpu_supports("avx512bf16")) return Isa::kAvx512;
  bool amx = __builtin_cpu_supports("amx-tile") && __builtin_cpu_supports("amx-bf16");
  return amx && RequestAmx() ? Isa::kAmx : Isa::kAvx512Bf16;
}
#else
Isa Detect() {
  return Isa::kBaseline;
}
#endif

Isa FromEnvironment() {
  Isa detected = DetectedIsa();
  const char* wanted = std::getenv("WEFT_ISA");
  if (wanted == nullptr || *wanted == '\0') return detected;
  for (size_t i = 0; i < kNames.size(); ++i) {
    if (kNames[i] != wanted) continue;
    if (static_cast<Isa>(i) <= detected) return static_cast<Isa>(i);
    break;
  }
  WEFT_LOG_WARNING << "WEFT_ISA=" << wanted << " ignored: this CPU offers up to "
                   << IsaName(detected)
                   << "; hint: one of baseline, avx2, avx512, avx512_bf16, amx";
  return detected;
}

std::atomic<Isa>& Active() {
  static std::atomic<Isa> active = ProcessIsa();
  return active;
}

}  // namespace

std::string_view IsaName(Isa isa) {
  return kNames[static_cast<size_t>(isa)];
}

Isa DetectedIsa() {
  static const Isa kDetected = Detect();
  return kDetected;
}

Isa ProcessIsa() {
  static const Isa kProcess = FromEnvironment();
  return kProcess;
}

Isa ActiveIsa() {
  return Active().load(std::memory_order_relaxed);
}

ScopedIsa::ScopedIsa(Isa isa) : previous_(ActiveIsa()) {
  WEFT_CHECK(isa <= DetectedIsa(), "this CPU lacks the instruction set");
  Active().store(isa, std::memory_order_relaxed);
}

ScopedIsa::~ScopedIsa() {
  Active().store(previous_, std::memory_order_relaxed);
}

}  // namespace weft::kernels::cpu
