#include "common/model/state_tensors.h"

#include <initializer_list>
#include <string>
#include <string_view>

namespace weft {
namespace {

/// A state tensor with a number for each of the parameter.
struct NamedMoment {
  std::string_view name;
  MomentKind kind = MomentKind::kNone;
};
constexpr NamedMoment kMomentum{"momentum", MomentKind::kFirst};
constexpr NamedMoment kFirstMoment{"first_moment", MomentKind::kFirst};
constexpr NamedMoment kSecondMoment{"second_moment", MomentKind::kSecond};

}  // namespace

bool UpdatedByMuon(const ParameterAttributes& parameter, size_t rank) {
  return rank == 2 && parameter.block >= 0;
}

OptimizerSpec StatelessOptimizer() {
  OptimizerSpec plain;
  plain.name = "sgd";
  plain.momentum = 0;
  return plain;
}

std::vector<StateTensor> StateTensorsOf(const OptimizerSpec& optimizer,
                                        const ParameterAttributes& parameter,
                                        const std::vector<int64_t>& shape) {
  const auto like_it = [&](std::initializer_list<NamedMoment> moments) {
    std::vector<StateTensor> tensors;
    for (const NamedMoment& each : moments) tensors.push_back({each.name, shape, each.kind});
    return tensors;
  };
  const std::string& name = optimizer.name;
  if (name == "sgd" && optimizer.momentum == 0) return {};
  if (name == "sgd" || name == "lars" || name == "lion") return like_it({kMomentum});
  if (name == "muon" && UpdatedByMuon(parameter, shape.size())) return like_it({kMomentum});
  if (name == "schedule_free_adamw") return like_it({{"average"}, {"base"}, kSecondMoment});
  if (name == "adafactor") {
    if (shape.size() < 2) return like_it({kSecondMoment});
    return {{"row_moment", {shape[0]}}, {"column_moment", {shape[1]}}};
  }
  return like_it({kFirstMoment, kSecondMoment});
}

}  // namespace weft
