#pragma once

// What sm_90a adds, for the host execution: each does on the host what the instruction of
// kernels/cuda/ptx_hopper.h does, as late as that may, and finds who does not wait for it.

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "tests/gpu/host/executor.h"

struct CUtensorMap;

namespace weft::host_cuda {

/// A product of a warpgroup as one thread starts it.
struct Product {
  const uint32_t* left;  ///< Four words in registers; nullptr: of `left_matrix`.
  uint64_t left_matrix;
  uint64_t right_matrix;
  float* sums;  ///< columns / 2 of them
  int columns;
  bool accumulate;
  bool by_columns;  ///< The right operand.
  bool half;        ///< float16 instead of bfloat16
  /// The metadata of a left operand with two of each four elements in a row (wgmma.mma_async.sp),
  /// which `left_matrix` has: a word in a register; nullptr for others.
  const uint32_t* metadata = nullptr;
  uint32_t selector = 0;
};

/// The state of a block; called by its threads, except Begin and End.
class Hopper {
 public:
  Hopper();
  ~Hopper();

  void Begin(uint32_t threads, unsigned char* shared, size_t shared_bytes);
  /// What was left undone, empty when nothing was.
  std::string End();

  /// In the state space of shared memory. The first byte of a launch's dynamic memory is only
  /// aligned as DynamicShared says.
  uint32_t SharedAddress(const void* shared) const;

  void InitBarrier(void* barrier, int arrivals);
  void Arrive(void* barrier, int64_t expected_bytes);
  void WaitForPhase(void* barrier, uint32_t parity, Site site);
  /// Garbage until a thread waits for the barrier's phase.
  void CopyTile(void* shared, const CUtensorMap& map, int x, int y, int z, void* barrier);
  void CopyBytes(void* shared, const void* from, int bytes, void* barrier);

  /// A store of this thread, which copies and products must not meet before its fence.
  void NoteStore(const void* shared, size_t bytes);
  void FenceAsyncProxy();

  /// The sums are NaN until they are waited for.
  void StartProduct(const Product& product, Site site);
  void FenceProducts();
  void CommitProducts();
  void WaitForProducts(int groups, Site site);

  void SetRegisters(int count, bool raise);

 private:
  struct Barrier;
  struct Copy;
  struct Operation;
  struct Thread;
  struct Warpgroup;

  Barrier& BarrierAt(const void* at);
  void EndPhaseIfDue(Barrier& barrier);
  void Queue(Barrier& barrier, const Copy& copy, size_t bytes);
  void Land(const Copy& copy);
  Warpgroup& Own();
  unsigned char* PointerTo(uint32_t address, size_t bytes) const;
  void Demand16(uint32_t address);
  void Read(Operation& operation);
  void Finish(Warpgroup& group, Operation& operation);

  uint32_t threads_ = 0;
  unsigned char* shared_ = nullptr;
  size_t shared_bytes_ = 0;
  std::unordered_map<const void*, std::unique_ptr<Barrier>> barriers_;
  std::vector<Thread> thread_;
  std::vector<Warpgroup> warpgroups_;
  std::vector<uint16_t> stored_by_;  // Of each 16 bytes: one more than the thread.
};

/// The state of the block that the calling thread belongs to.
Hopper& CurrentHopper();

}  // namespace weft::host_cuda
