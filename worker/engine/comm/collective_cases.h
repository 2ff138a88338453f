#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "worker/engine/comm/collective.h"

namespace weft::engine {

/// One rank of a test: its group, and where it computes.
class TestRank {
 public:
  TestRank(Collective& its_group, Stream its_stream) : group(its_group), stream(its_stream) {}
  virtual ~TestRank() = default;

  /// A tensor of the group's device; lives as long as this.
  virtual TensorView NewTensor(DType dtype, int64_t count) = 0;
  /// Writes behind everything that the stream was given, and waits for it.
  virtual void Write(const TensorView& tensor, const void* bytes) = 0;
  virtual void Read(const TensorView& tensor, void* bytes) = 0;

  TensorView Put(DType dtype, const std::vector<float>& values);
  std::vector<float> Get(const TensorView& tensor);

  Collective& group;
  const Stream stream;
};

/// A back end of Collective, for the cases that all of them have to pass.
struct CollectiveBackend {
  std::string name;
  /// Sums are exactly those of ReducePairwise, and maxima those of the values.
  bool pairwise = false;
  /// Runs `body` as this many ranks, threads of this process, and joins them.
  std::function<void(int size, std::chrono::milliseconds timeout,
                     const std::function<void(TestRank&)>& body)>
      run;
};

/// For the names of tests.
inline void PrintTo(const CollectiveBackend& backend, std::ostream* out) {
  *out << backend.name;
}

class CollectiveCases : public testing::TestWithParam<CollectiveBackend> {};

}  // namespace weft::engine
