#include "common/formats/weight_files.h"

#include <algorithm>
#include <functional>
#include <string_view>
#include <vector>

#include "common/hash.h"

namespace weft {
namespace {

constexpr std::string_view kSafeSave = "save_pretrained(OTHER_FOLDER, safe_serialization=True)";

bool IsShard(std::string_view name, std::string_view ending) {
  return name.starts_with("model-") && name.ends_with(ending) &&
         name.find("-of-") != std::string_view::npos;
}

/// A form of weights that is not read, how to know it by a file's name, and what to do with it.
struct OtherForm {
  std::function<bool(std::string_view name)> matches;
  std::string what;
  std::string hint;
};

std::vector<OtherForm> OtherForms() {
  const auto named = [](std::string wanted) {
    return [wanted](std::string_view name) { return name == wanted; };
  };
  const auto ending = [](std::string wanted) {
    return [wanted](std::string_view name) { return name.ends_with(wanted); };
  };
  const std::string convert =
      "convert it in Python with transformers: AutoModelForCausalLM (or the "
      "class in config.json).from_pretrained(FOLDER)." +
      std::string(kSafeSave);
  return {
      {[](std::string_view name) { return IsShard(name, ".safetensors"); },
       "shards of safetensors without their index",
       "copy model.safetensors.index.json from where the shards came from"},
      {[](std::string_view name) { return name.starts_with("adapter_model."); },
       "a PEFT adapter (LoRA or alike) without the model it adapts",
       "the folder of its base model, with --peft FOLDER of weft export and weft generate, or as "
       "model.import_path of a job with model.peft.import_path FOLDER"},
      {[](std::string_view name) {
         return name.starts_with("pytorch_model") && name.ends_with(".bin");
       },
       "PyTorch pickles", convert},
      {ending(".gguf"), "GGUF", convert + ", with gguf_file=FILE"},
      {named("tf_model.h5"), "TensorFlow weights", convert + ", version 4 and from_tf=True"},
      {named("flax_model.msgpack"), "Flax weights", convert + ", version 4 and from_flax=True"},
      {[](std::string_view name) { return name.starts_with("consolidated."); },
       "weights under the names of their maker, not of Hugging Face",
       "take the folder in Hugging Face's form, or convert it with the script of transformers for "
       "this model"},
      {[](std::string_view name) { return name.ends_with(".pt") || name.ends_with(".pth"); },
       "a PyTorch checkpoint",
       "load it in Python into the model's class of transformers and call " +
           std::string(kSafeSave)},
      {ending(".safetensors"), "safetensors under another name",
       "name the file model.safetensors if it holds all weights"},
  };
}

}  // namespace

Status MissingFileError(Env& env, const std::string& folder, const std::string& wanted) {
  Result<std::vector<std::string>> names = env.ListDir(folder);
  if (!names.ok()) {
    if (names.status().code() != StatusCode::kNotFound) return names.status();
    return NotFoundError("there is no folder " + folder);
  }
  const std::string missing = folder + " has no " + wanted;
  for (const OtherForm& form : OtherForms()) {
    auto found = std::find_if(names->begin(), names->end(), form.matches);
    if (found == names->end()) continue;
    return InvalidError(missing + "; it holds " + form.what + " (" + *found +
                        "); hint: " + form.hint);
  }
  return InvalidError(missing +
                      "; hint: the folder must hold config.json and the weights as safetensors");
}

bool HoldsWeights(Env& env, const std::string& folder) {
  const Result<std::vector<std::string>> names = env.ListDir(folder);
  if (!names.ok()) return false;
  const std::vector<OtherForm> forms = OtherForms();  // model.safetensors ends like one of them
  return std::any_of(names->begin(), names->end(), [&](const std::string& name) {
    return std::any_of(forms.begin(), forms.end(),
                       [&](const OtherForm& form) { return form.matches(name); });
  });
}

Status OfGivenFiles(Status status) {
  if (status.code() != StatusCode::kCorrupt) return status;
  return InvalidError(status.message() + "; hint: copy or export the folder again");
}

Result<std::string> FingerprintOfWeights(Env& env, const std::string& folder) {
  WEFT_ASSIGN_OR_RETURN(std::vector<std::string> names, env.ListDir(folder));
  std::sort(names.begin(), names.end());
  ContentHash hash;
  for (const std::string& name : names) {
    if (!name.ends_with(".safetensors")) continue;
    WEFT_ASSIGN_OR_RETURN(const auto file, env.MapFile(JoinPath(folder, name)));
    hash.Update(name + '\n');
    hash.Update(file->bytes());
  }
  return hash.Hex();
}

}  // namespace weft
