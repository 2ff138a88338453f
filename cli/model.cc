#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <functional>
#include <iostream>
#include <memory>
#include <numeric>
#include <vector>

#include "cli/command.h"
#include "cli/terminal_text.h"
#include "cli/trained_model.h"
#include "common/formats/chat_template.h"
#include "common/formats/huggingface.h"
#include "common/formats/peft_adapter.h"
#include "common/formats/utf8.h"
#include "common/formats/weight_files.h"
#include "common/spec/model_family.h"
#include "kernels/cpu/wait_policy.h"
#include "worker/engine/models/added_network.h"
#include "worker/engine/models/generate.h"
#include "worker/engine/models/language_model.h"
#include "worker/engine/models/weights.h"

namespace weft::cli {
namespace {

struct ExportOptions {
  std::string source;
  int64_t step = -1;
  NetworkChoice network;
  std::string format = "hf";
  std::string output;
  std::string dtype;  ///< "": float32, or of an adapter that was read the types of its file.
};

/// The type of the weights to write. kInvalid when the source does not say what it was trained in.
Result<DType> ExportType(const std::string& name, const TrainedModel& trained) {
  if (name.empty() || name == "float32") return DType::kF32;
  if (name == "bfloat16") return DType::kBF16;
  if (name == "float16") return DType::kF16;
  if (trained.trained_dtype.has_value()) return *trained.trained_dtype;
  return InvalidError("config.json does not say what type the weights have; hint: --dtype float32");
}

/// Numbers in the files of an export. It has whole matrices in place of structured ones, and no
/// padding.
int64_t ExportedNumbers(const std::vector<HuggingFaceTensor>& tensors) {
  int64_t sum = 0;
  for (const HuggingFaceTensor& tensor : tensors) {
    sum +=
        std::accumulate(tensor.shape.begin(), tensor.shape.end(), int64_t{1}, std::multiplies<>());
  }
  return sum;
}

/// Reports what was written.
ExitCode Exported(const Session& session, const ExportOptions& options, int64_t parameters,
                  const std::string& format) {
  if (session.output == OutputFormat::kJson) {
    std::cout << Json{{"folder", options.output}, {"parameters", parameters}}.dump(2) << '\n';
  } else {
    std::cout << options.output << ": " << HumanCount(static_cast<double>(parameters))
              << " parameters in " << format << '\n';
  }
  return ExitCode::kOk;
}

/// The network that the adapter of a trained model belongs to. Without a hash where it is no longer
/// there; kInvalid where it is another one now.
Result<AdapterOrigin> OriginOf(const TrainedModel& trained) {
  const ModelSpec& spec = trained.model->spec();
  AdapterOrigin origin{
      .base = spec.import_path, .steps = trained.steps, .read_from = trained.adapter_folder};
  Env& env = Env::Posix();
  if (origin.base.empty() || !env.FileExists(JoinPath(origin.base, "config.json"))) return origin;
  if (!trained.base_fingerprint.empty()) {
    WEFT_ASSIGN_OR_RETURN(const std::string now, FingerprintOfWeights(env, origin.base));
    if (now != trained.base_fingerprint) {
      return InvalidError("the weights in " + origin.base +
                          " are no longer those that the adapter was trained on (fingerprint " +
                          trained.base_fingerprint + ", now " + now +
                          "); hint: put the files back as they were");
    }
  }
  WEFT_ASSIGN_OR_RETURN(origin.base_sha256, HashOfBase(env, origin.base, spec));
  return origin;
}

ExitCode ExportOfAdapter(const Session& session, const ExportOptions& options,
                         const TrainedModel& trained) {
  const bool read = !trained.adapter_folder.empty();
  if (!options.dtype.empty() && (read || options.dtype != "float32")) {
    return Fail(session, InvalidError(std::string(read ? "the adapter of --peft is written in the "
                                                         "types of its file"
                                                       : "adapters are written as float32") +
                                      "; hint: leave --dtype out"));
  }
  const Result<AdapterOrigin> origin = OriginOf(trained);
  if (!origin.ok()) return Fail(session, origin.status());
  const Status status =
      engine::ExportAdapterWeights(Env::Posix(), options.output, *trained.model, *origin);
  if (!status.ok()) return Fail(session, status);
  return Exported(session, options, ExportedNumbers(AdapterTensors(trained.model->spec())),
                  "the format of peft");
}

ExitCode Export(const Session& session, const ExportOptions& options) {
  NetworkChoice network = options.network;
  network.adapter_alone = options.format == "peft";
  auto trained = LoadTrainedModel(session, options.source, options.step, network);
  if (!trained.ok()) return Fail(session, trained.status());
  if (network.adapter_alone) return ExportOfAdapter(session, options, *trained);
  weft::ExportOptions extras;
  extras.tokenizer = trained->tokenizer.get();
  extras.imported = trained->imported;
  extras.classes = trained->classes;
  extras.preprocessor_json = trained->preprocessor_json;
  Result<DType> dtype = ExportType(options.dtype, *trained);
  if (!dtype.ok()) return Fail(session, dtype.status());
  extras.dtype = *dtype;
  extras.compresses = options.format == "compressed-tensors";
  const Status status =
      engine::ExportWeights(Env::Posix(), options.output, *trained->model, extras);
  if (!status.ok()) return Fail(session, status);
  return Exported(session, options, ExportedNumbers(HuggingFaceTensors(trained->model->spec())),
                  extras.compresses ? "Hugging Face format, 2:4 sparse weights compressed"
                                    : "Hugging Face format");
}

struct PromptOptions {
  std::string source;
  int64_t step = -1;
  NetworkChoice network;
  std::string base;  ///< Folder of a network whose logits are added; "": that of the training.
  std::string prompt;
  bool chat = false;   ///< The prompt is what a user says, and an answer is generated.
  std::string system;  ///< What comes before it in a chat; "": nothing.
  engine::GenerateOptions generate;
};

/// What a model is given, and which tokens end what it writes.
struct Prompt {
  std::vector<int32_t> tokens;
  std::vector<int32_t> stops;
};

Result<Prompt> TextPrompt(const std::string& text, const Tokenizer& tokenizer) {
  Prompt prompt{.tokens = {}, .stops = tokenizer.roles().stops};
  const auto& begin = tokenizer.model_form(/*pair=*/false).begin;
  prompt.tokens.assign(begin.begin(), begin.end());
  WEFT_RETURN_IF_ERROR(tokenizer.Encode(text, prompt.tokens));
  if (prompt.tokens.empty() && tokenizer.end_of_text().has_value()) {
    prompt.tokens.push_back(*tokenizer.end_of_text());  // what a document begins after
  }
  return prompt;
}

Result<Prompt> ChatPrompt(const PromptOptions& options, const Tokenizer& tokenizer) {
  if (options.prompt.empty())
    return InvalidError("--chat needs what the user says; hint: --prompt");
  const std::string& source = tokenizer.config().chat_template;
  if (source.empty()) {
    return InvalidError(options.source +
                        " has no chat template; hint: a chat_template.jinja next to its tokenizer, "
                        "or leave out --chat to continue a text");
  }
  Json messages = Json::array();
  if (!options.system.empty()) {
    messages.push_back({{"role", "system"}, {"content", options.system}});
  }
  messages.push_back({{"role", "user"}, {"content", options.prompt}});
  WEFT_ASSIGN_OR_RETURN(
      const Conversation conversation,
      Conversation::FromJson(messages.dump(-1, ' ', false, Json::error_handler_t::replace),
                             /*tools=*/""));
  WEFT_ASSIGN_OR_RETURN(const ChatTemplate chat, ChatTemplate::Create(source, tokenizer));
  const std::time_t time = std::time(nullptr);
  std::tm now{};
  localtime_r(&time, &now);
  Prompt prompt{.tokens = {}, .stops = tokenizer.roles().stops};
  WEFT_ASSIGN_OR_RETURN(prompt.tokens, chat.EncodePrompt(conversation, now));
  WEFT_ASSIGN_OR_RETURN(const std::vector<int32_t> ends, chat.EndTokens());
  prompt.stops.insert(prompt.stops.end(), ends.begin(), ends.end());
  return prompt;
}

/// Moves what is complete out of `pending`, which may end within a character (tokens are bytes);
/// with `last` everything. What is not UTF-8 becomes U+FFFD.
std::string TakeWholeCharacters(std::string& pending, bool last) {
  constexpr size_t kLongest = 4;
  std::string whole;
  size_t at = 0;
  while (at < pending.size()) {
    Utf8Char character = ReadUtf8(pending, at);
    if (!character.valid && !last && pending.size() - at < kLongest) break;
    AppendUtf8(whole, character.code);
    at += static_cast<size_t>(character.bytes);
  }
  pending.erase(0, at);
  return whole;
}

ExitCode Generate(const Session& session, const PromptOptions& options) {
  kernels::cpu::BoundSpinning();
  auto trained = LoadTrainedModel(session, options.source, options.step, options.network);
  if (!trained.ok()) return Fail(session, trained.status());
  if (const ModelSpec& spec = trained->model->spec(); HeadOf(spec) != "causal_lm") {
    return Fail(session,
                InvalidError(options.source + " is a " + spec.family + " with model.head " +
                             HeadOf(spec) + ", which does not continue text"));
  }
  auto& model = static_cast<engine::LanguageModel&>(*trained->model);
  const Tokenizer& tokenizer = *trained->tokenizer;
  const Result<Prompt> prompt =
      options.chat ? ChatPrompt(options, tokenizer) : TextPrompt(options.prompt, tokenizer);
  if (!prompt.ok()) return Fail(session, prompt.status());
  engine::GenerateOptions generate = options.generate;
  const std::string base = options.base.empty() ? trained->added_network : options.base;
  std::unique_ptr<engine::LanguageModel> added;
  if (!base.empty()) {
    auto loaded = engine::LoadAddedNetwork(Env::Posix(), *trained->context, base, kFp32Precision);
    if (!loaded.ok()) {
      return Fail(session, loaded.status().WithContext("the network whose logits are added"));
    }
    added = *std::move(loaded);
    generate.base = added.get();
  }
  generate.stop_token = tokenizer.end_of_text().value_or(-1);
  const bool stream = session.output != OutputFormat::kJson;
  const bool terminal = isatty(STDOUT_FILENO) != 0;
  std::string text, pending;
  if (stream && !options.chat) std::cout << options.prompt << std::flush;
  auto show = [&](bool last) {
    std::string whole = TakeWholeCharacters(pending, last);
    text += whole;
    if (stream) std::cout << (terminal ? ForTerminal(whole) : whole) << std::flush;
  };
  generate.on_token = [&](int32_t token) {
    const std::vector<int32_t>& stops = prompt->stops;
    if (std::find(stops.begin(), stops.end(), token) != stops.end()) return false;
    auto piece = tokenizer.Decode(std::span(&token, 1), /*at_start=*/false);
    if (!piece.ok()) return true;  // a padding row of the vocabulary stands for no text
    pending += *piece;
    show(/*last=*/false);
    return true;
  };
  auto tokens = engine::Generate(*trained->context, model, prompt->tokens, generate);
  show(/*last=*/true);
  if (!tokens.ok()) {
    if (stream) std::cout << '\n';
    return Fail(session, tokens.status());
  }
  if (stream) {
    std::cout << '\n';
  } else {
    Json json = {{"prompt", options.prompt}, {"text", text}, {"tokens", *tokens}};
    std::cout << json.dump(2, ' ', false, Json::error_handler_t::replace) << '\n';
  }
  return ExitCode::kOk;
}

constexpr char kSourceHelp[] = "Job, run folder, checkpoint folder or Hugging Face folder";
constexpr char kAdapterHelp[] = "Of several that were trained together, the one of this name";
constexpr char kPeftHelp[] =
    "Folder of Hugging Face's peft library: the adapter in it, on the base model in the source";
constexpr char kSubNetworkHelp[] =
    "The network within the network (model.low_rank_core, train.nested_model)";

}  // namespace

void AddModelCommands(CLI::App& app, Session& session) {
  auto exporting = std::make_shared<ExportOptions>();
  CLI::App* command = AddCommand(app, session, "export", "Write a trained model for other programs",
                                 [&session, exporting] { return Export(session, *exporting); });
  command->add_option("source", exporting->source, kSourceHelp)->required();
  command->add_option("--step", exporting->step, "Its checkpoint of this step (default: newest)");
  command->add_option("--adapter", exporting->network.adapter, kAdapterHelp);
  command->add_option("--peft", exporting->network.peft, kPeftHelp);
  command->add_flag("--sub-network", exporting->network.sub_network, kSubNetworkHelp);
  command
      ->add_option("--format", exporting->format,
                   "hf: a folder that transformers loads; compressed-tensors: the same with 2:4 "
                   "sparse weights in half of the memory; peft: the adapter alone")
      ->check(CLI::IsMember({"hf", "compressed-tensors", "peft"}))
      ->capture_default_str();
  command->add_option("--output", exporting->output, "Folder to write")->required();
  command
      ->add_option("--dtype", exporting->dtype,
                   "Type of the weights (default: float32); trained: what the training computed in")
      ->check(CLI::IsMember({"float32", "bfloat16", "float16", "trained"}));

  auto prompting = std::make_shared<PromptOptions>();
  engine::SamplingOptions& sampling = prompting->generate.sampling;
  command = AddCommand(app, session, "generate", "Let a trained model continue a text",
                       [&session, prompting] { return Generate(session, *prompting); });
  command->add_option("source", prompting->source, kSourceHelp)->required();
  command->add_option("--step", prompting->step, "Its checkpoint of this step (default: newest)");
  command->add_option("--adapter", prompting->network.adapter, kAdapterHelp);
  command->add_option("--peft", prompting->network.peft, kPeftHelp);
  command->add_flag("--sub-network", prompting->network.sub_network, kSubNetworkHelp);
  command->add_option("--base", prompting->base,
                      "Hugging Face folder of a network whose logits are added (default: that of "
                      "the training)");
  command->add_option("--prompt", prompting->prompt,
                      "Text to continue, or with --chat what the user says");
  CLI::Option* chat = command->add_flag(
      "--chat", prompting->chat, "Answer the prompt, in the form of the model's chat template");
  command->add_option("--system", prompting->system, "What a system message says before the prompt")
      ->needs(chat);
  command->add_option("--tokens", prompting->generate.max_new_tokens, "Tokens to add at most")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--temperature", sampling.temperature, "0 takes the most probable token")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command->add_option("--top-k", sampling.top_k, "Draw among this many tokens; 0: all")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command->add_option("--top-p", sampling.top_p, "Draw among the tokens that hold this probability")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  command->add_option("--seed", sampling.seed, "Same seed, same text")->capture_default_str();
}

}  // namespace weft::cli
