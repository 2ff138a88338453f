#pragma once

#include <memory>
#include <utility>

#include <gtest/gtest.h>

#include "kernels/cuda/device.h"

namespace weft::kernels {

/// Tests that need a CUDA device: a real one in a build with CUDA, otherwise the host execution of
/// tests/gpu/host, where work is deferred until a thread waits for it, so that who reads a result
/// too soon gets another one. Skipped without one.
class OnCuda : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda::DeviceCount() == 0) GTEST_SKIP() << "no CUDA device";
    Open(8);
  }

  /// Goes on with the kernels for devices of up to this compute capability (major), attention and
  /// 2:4 products by whom a test says.
  void Open(int newest, cuda::AttentionChoice attention = cuda::AttentionChoice::kOwn,
            cuda::Sparse24Choice sparse24 = cuda::Sparse24Choice::kOwn) {
    auto state = cuda::StreamState::Create(
        0, {.checked = true, .newest = newest, .attention = attention, .sparse24 = sparse24});
    ASSERT_TRUE(state.ok()) << state.status().ToString();
    state_ = *std::move(state);
  }

  Stream stream() { return state_->stream(); }

  std::unique_ptr<cuda::StreamState> state_;
};

}  // namespace weft::kernels
