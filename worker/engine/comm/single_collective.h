#pragma once

#include "worker/engine/comm/collective.h"

namespace weft::engine {

/// A group of one.
class SingleCollective : public Collective {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  Status AllReduceSum(std::span<float>) override { return OkStatus(); }
  Status AllReduceSum(std::span<double>) override { return OkStatus(); }
  Result<std::vector<std::string>> AllGather(std::string_view bytes) override {
    return std::vector<std::string>{std::string(bytes)};
  }
  Status Broadcast(std::span<std::byte>, int) override { return OkStatus(); }
  Status Barrier() override { return OkStatus(); }
  void Abort() override {}
};

}  // namespace weft::engine
