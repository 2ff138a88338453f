#include "worker/engine/comm/local_collective.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

namespace weft::engine {
namespace {

class LocalCollective : public Collective {
 public:
  LocalCollective(Device device, std::string name, int member)
      : Collective(0, 1, device, std::move(name), {member}) {}

  Result<std::vector<std::string>> AllGather(std::string_view bytes) override {
    return std::vector<std::string>{std::string(bytes)};
  }
  Status Broadcast(std::span<std::byte>, int) override { return OkStatus(); }
  Status Barrier() override { return OkStatus(); }
  Result<std::unique_ptr<Collective>> Split(int64_t, const std::string& name) override {
    return NewLocalCollective(device(), name, members()[0]);
  }
  void Abort() override {}

 private:
  Work Start(const Stream&, CollectiveCall call) override {
    if (call.kind != CollectiveKind::kExchange && call.kind != CollectiveKind::kAllToAll) {
      call.sends = {{call.input, 0}};
      call.receives = {{call.output, 0}};
    }
    const bool in_place =
        call.sends.size() == 1 && call.sends[0].values.data == call.receives[0].values.data;
    if (!in_place && device().type != DeviceType::kCpu) {
      return Work(InvalidError(std::string(CollectiveKindName(call.kind)) +
                               " on one CUDA device works in place only"));
    }
    CopyToSelf(call, 0);
    return Work();
  }
};

}  // namespace

void CopyToSelf(const CollectiveCall& call, int rank) {
  auto receive = call.receives.begin();
  for (const Transfer& send : call.sends) {
    if (send.peer != rank) continue;
    receive = std::find_if(receive, call.receives.end(),
                           [rank](const Transfer& transfer) { return transfer.peer == rank; });
    const size_t bytes = send.values.Bytes();
    if (bytes > 0 && send.values.data != receive->values.data) {
      std::memcpy(receive->values.data, send.values.data, bytes);
    }
    ++receive;
  }
}

std::unique_ptr<Collective> NewLocalCollective(Device device, std::string name, int member) {
  return std::make_unique<LocalCollective>(device, std::move(name), member);
}

}  // namespace weft::engine
