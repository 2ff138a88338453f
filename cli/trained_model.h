#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/command.h"
#include "common/dtype.h"
#include "common/formats/tokenizer.h"
#include "common/formats/usage_files.h"
#include "common/status.h"
#include "worker/engine/models/model.h"
#include "worker/engine/tensor/context.h"

namespace weft::cli {

/// A model with its weights and what belongs to it, ready to be used or to be written out.
struct TrainedModel {
  std::unique_ptr<engine::Allocator> allocator;
  std::unique_ptr<engine::Context> context;
  std::unique_ptr<engine::Model> model;
  std::unique_ptr<Tokenizer> tokenizer;  ///< None for images.
  std::vector<std::string> classes;      ///< Names, as far as they are known.
  std::string preprocessor_json;         ///< As in weft::ExportOptions.
  UsageFiles imported;                   ///< As in weft::ExportOptions.
  int64_t steps = 0;                     ///< Of the training; 0: not known.
  std::string base_fingerprint;          ///< As in engine::CheckpointManifest.
  std::string added_network;             ///< Folder of that of the training; "": none.
  std::string adapter_folder;            ///< What its adapter was read from; "": it was trained.
  std::optional<DType> trained_dtype;    ///< What the training computed in, where that is known.
};

/// Which of the networks that a training makes, or that a base model and adapters make.
struct NetworkChoice {
  std::string adapter = {};  ///< Of several adapters that with this name; "" for all others.
  bool sub_network = false;  ///< That within the network (SubNetworkOf).
  /// A folder of peft with an adapter for the network of a Hugging Face folder; "": no adapter.
  std::string peft = {};
  /// The weights of the network itself are not needed: those that a checkpoint leaves out are zero.
  bool adapter_alone = false;
};

/// Loads from a Hugging Face folder, a checkpoint folder, a run folder, or a job the coordinator
/// knows; of the latter two the checkpoint of `step` (negative: the newest), verified first. An
/// adapter is read as a training that starts from it reads it, with the same errors: kInvalid where
/// it is of another base model, where a tensor is left over or missing, and where a file is cut.
Result<TrainedModel> LoadTrainedModel(const Session& session, const std::string& what, int64_t step,
                                      const NetworkChoice& choice);

}  // namespace weft::cli
