#pragma once

#include <cstddef>
#include <map>
#include <set>
#include <utility>

namespace weft::kernels::cuda {

/// What is free of some chunks of memory, cut to size by best fit; neighbours that are both given
/// back become one again. Touches none of it. Not thread-safe.
class FreePieces {
 public:
  /// A new chunk, all of it free. No piece reaches over its ends.
  void AddChunk(char* at, size_t bytes);
  /// Forgets a chunk that is wholly free.
  void RemoveChunk(char* at, size_t bytes);

  /// The beginning of the smallest piece that is large enough; null where there is none.
  char* Take(size_t bytes);
  /// Back again, what was taken with as many bytes.
  void Give(char* at, size_t bytes);

  bool IsFree(const char* at, size_t bytes) const;

 private:
  void Remove(std::map<char*, size_t>::iterator piece);

  std::set<char*> chunk_starts_;
  std::map<char*, size_t> free_;  ///< By address.
  std::set<std::pair<size_t, char*>> free_by_size_;
};

}  // namespace weft::kernels::cuda
