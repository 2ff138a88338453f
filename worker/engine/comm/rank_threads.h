#pragma once

#include <csignal>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/check.h"
#include "worker/engine/comm/collective.h"
#include "worker/engine/comm/hash_store.h"

namespace weft::engine {

/// For tests: runs `body` as `size` ranks, threads of this process that share a Gloo group over
/// loopback, or one of NCCL with a device each, and joins them.
inline void RunRanks(int size, std::chrono::milliseconds timeout,
                     const std::function<void(Collective&)>& body,
                     DeviceType type = DeviceType::kCpu) {
  signal(SIGPIPE, SIG_IGN);  // as trainers do: Gloo writes to sockets that peers may have closed
  HashStore store;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      CollectiveOptions options;
      options.rank = rank;
      options.size = size;
      options.connect_timeout = std::chrono::seconds(20);
      options.timeout = timeout;
      options.device = {type, type == DeviceType::kCuda ? rank : 0};
      Result<std::unique_ptr<Collective>> group = ConnectCollective(options, store);
      WEFT_CHECK(group.ok(), group.status().message());
      body(**group);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace weft::engine
