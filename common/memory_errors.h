#pragma once

#include <new>
#include <string>
#include <string_view>
#include <system_error>

#include "common/status.h"

namespace weft {

/// Runs `work`, which returns a Status or a Result, and turns what the standard library throws when
/// the machine has no more memory or threads into kExhausted; `what` says what was attempted. For
/// the edges where much is allocated, and for threads, whose exceptions would end the process.
template <class Work>
auto CatchExhaustion(std::string_view what, Work&& work) -> decltype(work()) {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    return ExhaustedError(std::string(what) +
                          ": the system has no more memory; hint: a smaller micro_batch, "
                          "recompute: block, or fewer ranks on this machine");
  } catch (const std::system_error& error) {
    if (error.code() != std::errc::resource_unavailable_try_again) throw;
    return ExhaustedError(std::string(what) +
                          ": the system gives no more threads, for lack of memory or by a limit; "
                          "hint: fewer threads_per_rank, or a higher limit (ulimit -u)");
  }
}

/// Whether what was exhausted is memory, and not a disk.
inline bool IsMemoryError(const Status& status) {
  return status.code() == StatusCode::kExhausted && status.kind() != FailureKind::kDiskFull;
}

}  // namespace weft
