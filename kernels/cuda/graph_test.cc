#include "kernels/cuda/graph.h"

#include <cstdint>

#include "kernels/cuda/on_cuda_test.h"
#include "kernels/cuda/transfer.h"

namespace weft::kernels::cuda {
namespace {

class Graphs : public OnCuda {
 protected:
  void SetUp() override {
    OnCuda::SetUp();
    if (IsSkipped()) return;
    auto pinned = PinnedMemory::Allocate(2 * sizeof(int32_t));
    auto memory = DeviceMemory::Allocate(0, 2 * sizeof(int32_t));
    ASSERT_TRUE(pinned.ok() && memory.ok());
    pinned_ = *std::move(pinned);
    memory_ = *std::move(memory);
    from() = to() = 0;
    ASSERT_TRUE(FillBytes(stream(), memory_.data(), 0, memory_.bytes()).ok());
    ASSERT_TRUE(state_->Synchronize().ok());
  }

  int32_t& from() { return static_cast<int32_t*>(pinned_.data())[0]; }
  int32_t& to() { return static_cast<int32_t*>(pinned_.data())[1]; }

  // There and back.
  Status Copy() {
    WEFT_RETURN_IF_ERROR(CopyToDevice(stream(), memory_.data(), &from(), sizeof(int32_t)));
    return CopyToHost(stream(), &to(), memory_.data(), sizeof(int32_t));
  }

  PinnedMemory pinned_;
  DeviceMemory memory_;
};

TEST_F(Graphs, EachLaunchDoesAgainWhatWasRecorded) {
  constexpr size_t kLarge = size_t{16} << 20;
  auto event = Event::Create(stream());
  auto large = DeviceMemory::Allocate(0, kLarge);
  ASSERT_TRUE(event.ok() && large.ok());
  // Passed, until a launch places it anew.
  ASSERT_TRUE(event->Place(stream()).ok() && event->Wait().ok());
  from() = 1;
  ASSERT_TRUE(Graph::Begin(stream()).ok());
  // Long enough that who does not wait for the event comes too early.
  for (int i = 0; i < 10; ++i) {
    ASSERT_TRUE(FillBytes(stream(), large->data(), 1, kLarge).ok());
  }
  ASSERT_TRUE(Copy().ok());
  ASSERT_TRUE(event->Place(stream()).ok());
  auto graph = Graph::End(stream());
  ASSERT_TRUE(graph.ok()) << graph.status().ToString();
  ASSERT_TRUE(state_->Synchronize().ok());
  EXPECT_EQ(to(), 0) << "it was run while it was recorded";
  for (const int32_t value : {2, 3}) {
    from() = value;
    ASSERT_TRUE(graph->Launch(stream()).ok());
    ASSERT_TRUE(event->Wait().ok());
    EXPECT_EQ(to(), value);
  }
}

TEST_F(Graphs, WhatWaitsOrTakesMemoryCannotBeRecorded) {
  const auto refused = [&](const char* what, auto&& act) {
    ASSERT_TRUE(Graph::Begin(stream()).ok()) << what;
    EXPECT_TRUE(Copy().ok()) << what;
    EXPECT_FALSE(act().ok()) << what;
    EXPECT_FALSE(Graph::End(stream()).ok()) << what;
    // The stream goes on.
    from() = to() + 1;
    ASSERT_TRUE(Copy().ok()) << what;
    ASSERT_TRUE(state_->Synchronize().ok()) << what;
    EXPECT_EQ(to(), from()) << what;
  };
  refused("waiting", [&] { return state_->Synchronize(); });
  refused("device memory", [] { return DeviceMemory::Allocate(0, 1 << 20).status(); });
  auto other = StreamState::Create(0);
  auto event = Event::Create(stream());
  ASSERT_TRUE(other.ok() && event.ok());
  ASSERT_TRUE(event->Place((*other)->stream()).ok());
  refused("another stream", [&] { return event->Block(stream()); });
}

}  // namespace
}  // namespace weft::kernels::cuda
