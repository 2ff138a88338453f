#pragma once

#include <cstdint>
#include <string>

#include "common/env.h"
#include "common/formats/safetensors.h"
#include "common/json.h"
#include "common/spec/model_spec.h"
#include "common/status.h"

namespace weft {

// Which network an adapter belongs to.

/// Where an adapter comes from.
struct AdapterOrigin {
  std::string base = {};         ///< Its network: a folder or a name of the hub; empty: left open.
  std::string base_sha256 = {};  ///< HashOfBase of it; empty: left open.
  int64_t steps = 0;             ///< Of its training; 0: not known.
  /// Folder of peft that it was read from and not trained since, whose tensors keep their types;
  /// empty: all are F32.
  std::string read_from = {};
};

/// The key of HashOfBase in the metadata of adapter_model.safetensors.
inline constexpr char kBaseHashKey[] = "base_model_sha256";

/// SHA-256, as hex digits, of the weights of the network in `folder`: of the lines "<name> <SHA-256
/// of its values as f32>" in the order of HuggingFaceTensors. So neither shards nor the type of the
/// file change it. Without a head that `model`, made from the folder, does not have from there.
/// Errors as ImportModel.
Result<std::string> HashOfBase(Env& env, const std::string& folder, const ModelSpec& model);

/// kInvalid where the adapter's `config` and `base_folder`/config.json name two different networks
/// of the hub. Folders that are elsewhere now are no names.
Status CheckBaseName(Env& env, const Json& config, const std::string& base_folder);

/// kInvalid where the file of an adapter in `folder` has the hash of another network than that in
/// `base_folder`, from which `model` is made. Reads that network where there is a hash.
Status CheckBaseHash(Env& env, const std::string& folder, const std::string& base_folder,
                     const ModelSpec& model);

}  // namespace weft
