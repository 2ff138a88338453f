#pragma once

#include <cstdint>

#include <omp.h>

namespace weft::kernels::cpu {

/// Threads that parallel loops of this process use: the plan's threads_per_rank. oneDNN shares
/// the same OpenMP pool, so the two never fight for cores.
inline int Threads() {
  return omp_get_max_threads();
}
inline void SetThreads(int count) {
  omp_set_num_threads(count);
}

/// Calls fn(begin, end) on contiguous parts of [0, count), at most one a thread, each of at least
/// `grain` items. The split depends only on count, grain and Threads().
template <class Fn>
void ParallelFor(int64_t count, int64_t grain, Fn&& fn) {
  int64_t parts = grain > 0 ? (count + grain - 1) / grain : count;
  if (parts > Threads()) parts = Threads();
  if (parts <= 1) {
    if (count > 0) fn(int64_t{0}, count);
    return;
  }
#pragma omp parallel for num_threads(static_cast <int>(parts)) schedule(static, 1)
  for (int64_t part = 0; part < parts; ++part) {
    fn(count * part / parts, count * (part + 1) / parts);
  }
}

/// Calls fn(item) for each of [0, count), handed out one by one: for items of unequal cost.
template <class Fn>
void ParallelForDynamic(int64_t count, Fn&& fn) {
  if (count <= 1 || Threads() == 1) {
    for (int64_t item = 0; item < count; ++item) fn(item);
    return;
  }
#pragma omp parallel for schedule(dynamic, 1)
  for (int64_t item = 0; item < count; ++item) fn(item);
}

}  // namespace weft::kernels::cpu
