#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

namespace weft::host_cuda {

/// Three sizes or coordinates, x innermost.
struct Index3 {
  uint32_t x = 1, y = 1, z = 1;
  constexpr uint64_t Count() const { return uint64_t{x} * y * z; }
};

/// A place in a kernel, for messages and to tell one barrier from another.
struct Site {
  const char* file;
  int line;
  static constexpr Site Here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    return {file, line};
  }
  bool operator==(const Site& o) const { return line == o.line && file == o.file; }
};

/// One launch: `body` is called by every thread of every block.
struct Launch {
  Index3 grid;
  Index3 block;
  size_t dynamic_shared_bytes = 0;
  bool asked_for_shared = false;  ///< Its kernel may have more than 48 KiB in all.
  std::function<void()> body;
};

/// What cudaFuncSetAttribute does for a kernel's dynamic shared memory, and whether it was called.
void AskForShared(const void* kernel);
bool HasAskedForShared(const void* kernel);

/// Runs all blocks and returns what went wrong first, empty when nothing did: a barrier that not
/// all threads reach, a shuffle with a lane missing, a misaligned access, too much shared memory.
/// The message names block and thread. Each block's threads are fibers of one of two operating
/// system threads; the order of blocks and threads differs from launch to launch, by a seed that
/// WEFT_HOST_CUDA_SEED sets. ThreadSanitizer sees each fiber as a thread that only barriers and
/// launches order; AddressSanitizer sees shared variables with gaps between them. From any thread;
/// launches take turns.
std::string Run(const Launch& launch);

// All below: called by the threads of a block.

/// Ends the calling thread's launch with `problem`.
[[noreturn]] void Fail(const std::string& problem);

/// What __syncthreads_count and its like give back.
struct Votes {
  int count = 0;  ///< Threads whose predicate holds.
  int threads = 0;
};

/// Waits for all threads of the block, which must come to the same place.
Votes SyncThreads(bool predicate, Site site);

/// Barrier `id` (1 to 15) of `threads` threads, wherever they come from.
void SyncNamed(int id, int threads, Site site);

/// Arrives at that barrier without waiting.
void ArriveNamed(int id, int threads, Site site);

/// Puts the calling thread to sleep until another calls Wake with the same address. `what` says in
/// messages what it waits for.
void Sleep(const void* on, const char* what, Site site);
void Wake(const void* on);

/// Waits for the lanes of `mask`, the caller's among them, and orders their memory accesses.
void SyncWarp(uint32_t mask, Site site);

inline constexpr int kWarpSize = 32;
inline constexpr int kMaxWords = 16;

/// What the lanes of a warp bring to a common operation and take from it.
struct WarpWords {
  uint32_t lanes = 0;  ///< Which take part.
  uint32_t in[kWarpSize][kMaxWords];
  uint32_t out[kWarpSize][kMaxWords];
};

/// A common operation of a warp's lanes. Runs outside the sight of ThreadSanitizer.
using WarpOperation = void (*)(WarpWords& words);

/// Waits for the lanes of `mask`, which must call for the same operation with the same mask; then
/// `operation` makes all words of `out` from those of `in`. Orders no memory accesses.
void WithWarp(uint32_t mask, WarpOperation operation, const uint32_t* in, int in_words,
              uint32_t* out, int out_words, Site site);

/// Makes out[lane][0..1] from in[lane][0..1] (the value) and in[lane][2] (the source lane).
void TakeFromLane(WarpWords& words);
/// out[lane][0] is the mask of the lanes whose in[lane][0] is not 0.
void Ballot(WarpWords& words);
/// In f32, out (4 words) = A (in 0 to 3) times B (in 4 and 5) plus C (in 6 to 9), in the fragment
/// layouts of mma.m16n8k16 (PTX ISA, "Matrix Fragments for mma.m16n8k16").
void MultiplyBFloat16(WarpWords& words);
void MultiplyHalf(WarpWords& words);
/// The same of A [16, 32], two of each four in a row (in 0 to 3), B (in 4 to 7), C (in 8 to 11),
/// the metadata (in 12) and the sparsity selector (in 13), as mma.sp::ordered_metadata.m16n8k32 has
/// them (PTX ISA, "Matrix Fragments for sparse mma.m16n8k32 with .f16 and .bf16 types"). Metadata
/// that it has not makes the row a NaN.
void MultiplySparseBFloat16(WarpWords& words);
void MultiplySparseHalf(WarpWords& words);
/// Lane 8 i + r brings row r of matrix i (in, 4 words); word i of a lane's `out` is its two
/// elements of matrix i (PTX ISA, "ldmatrix"), or of its transpose.
void SpreadMatrices(WarpWords& words);
void SpreadTransposed(WarpWords& words);
/// The other way: lane 8 i + c gets column c of matrix i (PTX ISA, "stmatrix" with .trans).
void GatherTransposed(WarpWords& words);

/// The calling thread within its block, and the lane within its warp.
uint32_t ThreadRank();
uint32_t Lane();

/// The block's variable that `tag` stands for, made of 0xff bytes by the first thread that asks.
void* SharedVariable(const void* tag, size_t bytes, size_t alignment);

/// The block's dynamic shared memory: exactly as long as the launch asked for, all 0xff.
void* DynamicShared();

/// A copy that the sanitizers see as one of the calling thread (source nullptr: zeros).
void VisibleCopy(void* to, const void* from, size_t bytes);

/// Queues a copy of `bytes` that is done when the thread waits for it (source nullptr: zeros).
void CopyLater(void* to, const void* from, size_t bytes);
void CommitCopies();
/// Does the copies of all but the latest `groups` committed groups.
void WaitForCopies(int groups);

}  // namespace weft::host_cuda

// The position of the current thread, under CUDA's names.
// NOLINTBEGIN(readability-identifier-naming)
extern constinit thread_local weft::host_cuda::Index3 threadIdx;
extern constinit thread_local weft::host_cuda::Index3 blockIdx;
extern constinit thread_local weft::host_cuda::Index3 blockDim;
extern constinit thread_local weft::host_cuda::Index3 gridDim;
// NOLINTEND(readability-identifier-naming)
