#pragma once

#include <cstdint>
#include <string>

#include "common/spec/job_spec.h"

namespace weft::testing {

/// The network of a job: a choice may mean another method of the same kind for each, so that all
/// methods are trained in no more jobs. Encoders have the methods of gpt2.
enum class Network : uint8_t { kGpt2, kLlama, kMixtral };

inline Network NetworkOf(const JobSpec& job) {
  if (job.model.experts > 0) return Network::kMixtral;
  return job.model.family == "llama" ? Network::kLlama : Network::kGpt2;
}

/// The methods of each network.
struct Methods {
  std::string gpt2, llama, mixtral;

  const std::string& Of(const JobSpec& job) const {
    const Network network = NetworkOf(job);
    return network == Network::kGpt2 ? gpt2 : network == Network::kLlama ? llama : mixtral;
  }
  /// "snip/magnitude/random"
  std::string Names() const {
    std::string names = gpt2;
    for (const std::string* other : {&llama, &mixtral}) {
      if (names.find(*other) == std::string::npos) names += "/" + *other;
    }
    return names;
  }
};

}  // namespace weft::testing
