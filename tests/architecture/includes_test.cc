// The arrows of docs/design.md: which folder may include what.

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// Where a file that lies under `folder` may include from, among our own headers. The rule with the
/// longest folder counts.
struct FolderRule {
  std::string_view folder;
  std::vector<std::string_view> may_include;
  bool binds_tests = true;  ///< Otherwise the rule of the folder above holds for tests.
};

const std::vector<FolderRule>& FolderRules() {
  static const std::vector<FolderRule> rules = {
      {"common/", {"common/"}},
      {"kernels/", {"common/", "kernels/"}},
      {"worker/engine/", {"common/", "kernels/", "worker/engine/"}},
      // What techniques, models and the trainer are made of, which knows none of these.
      {"worker/engine/tensor/", {"common/", "kernels/", "worker/engine/tensor/"}},
      {"worker/engine/autograd/",
       {"common/", "kernels/", "worker/engine/autograd/", "worker/engine/tensor/"}},
      {"worker/engine/comm/",
       {"common/", "kernels/", "worker/engine/comm/", "worker/engine/tensor/"}},
      {"worker/engine/data/", {"common/", "kernels/", "worker/engine/data/"}},
      {"worker/engine/optim/",
       {"common/", "kernels/", "worker/engine/nn/", "worker/engine/optim/",
        "worker/engine/tensor/"},
       /*binds_tests=*/false},
      // Layers know no technique: what a model has of them it hands to its layers.
      {"worker/engine/nn/",
       {"common/", "kernels/", "worker/engine/autograd/", "worker/engine/comm/",
        "worker/engine/data/", "worker/engine/nn/", "worker/engine/tensor/"}},
      // The model and the trainer call techniques, which know neither.
      {"worker/engine/techniques/",
       {"common/", "kernels/", "worker/engine/autograd/", "worker/engine/comm/",
        "worker/engine/data/", "worker/engine/nn/", "worker/engine/optim/",
        "worker/engine/techniques/", "worker/engine/tensor/"},
       /*binds_tests=*/false},
      {"worker/trainer/", {"common/", "kernels/", "worker/engine/", "worker/trainer/"}},
      // The daemon measures kernels, and speaks to ranks over the channel that the trainer defines.
      {"worker/daemon/",
       {"common/", "kernels/", "proto/", "weft/", "worker/daemon/", "worker/trainer/control.h"}},
      {"worker/", {"common/", "kernels/", "worker/"}},
      {"coordinator/planner/", {"common/", "coordinator/planner/"}},
      {"coordinator/scheduler/",
       {"common/", "coordinator/scheduler/", "coordinator/store/records.h"}},
      {"coordinator/api/", {"common/", "coordinator/", "proto/", "weft/"}},
      {"coordinator/", {"common/", "coordinator/"}},
      {"proto/", {"common/", "proto/", "weft/"}},
      {"cli/",
       {"common/", "kernels/", "worker/engine/", "worker/trainer/", "worker/daemon/device_rates.h",
        "worker/daemon/devices.h", "worker/daemon/nvml.h", "worker/daemon/progress.h", "cli/",
        "coordinator/planner/", "proto/", "weft/"}},
      {"tests/",
       {"common/", "kernels/", "worker/", "coordinator/", "proto/", "weft/", "cli/", "tests/"}},
  };
  return rules;
}

/// A header of others, by the start of its name, and the only places that may include it.
struct LibraryRule {
  std::string_view header;
  std::vector<std::string_view> only_in;  ///< Folders, or "*" and the end of a file name.
};

const std::vector<LibraryRule>& LibraryRules() {
  static const std::vector<std::string_view> wire = {"proto/", "coordinator/api/", "worker/daemon/",
                                                     "cli/", "tests/"};
  static const std::vector<std::string_view> cuda = {"*_cuda.cu", "*_cuda.cc", "kernels/cuda/",
                                                     "tests/gpu/"};
  static const std::vector<LibraryRule> rules = {
      {"grpc", wire},
      {"google/protobuf", wire},
      {"cuda", cuda},
      {"cublas", cuda},
      {"cudnn", cuda},
      {"cusparse", cuda},
      {"cutlass", cuda},
      {"nccl", {"*_cuda.cu", "kernels/cuda/", "worker/engine/comm/"}},
      {"oneapi/dnnl", {"kernels/linear/matmul.cc"}},
      {"dnnl", {"kernels/linear/matmul.cc"}},
      {"gloo/", {"worker/engine/comm/"}},
      {"sqlite3", {"coordinator/store/"}},
      {"openssl/", {"common/tls/"}},
      {"yaml-cpp", {"common/yaml.cc"}},
      {"spdlog", {"common/log.cc"}},
  };
  return rules;
}

/// Searches on several threads, with a result that does not depend on them, and what those have in
/// common that is found when one asks first.
bool MayUseThreads(std::string_view file) {
  return file == "coordinator/planner/cluster/on_threads.h" ||
         file == "coordinator/planner/rank_share.h" || file == "coordinator/planner/chain_cache.h";
}

/// Planner and scheduler are functions of their arguments: no clock, no files, no threads.
bool IsImpure(std::string_view file, std::string_view header) {
  if (MayUseThreads(file) && (header == "thread" || header == "atomic" || header == "mutex")) {
    return false;
  }
  constexpr std::string_view kImpure[] = {
      "chrono", "ctime",   "fstream", "filesystem",     "random",       "thread",
      "mutex",  "atomic",  "future",  "common/clock.h", "common/env.h", "common/failpoint.h",
      "sys/",   "unistd.h"};
  return std::any_of(std::begin(kImpure), std::end(kImpure), [&](std::string_view impure) {
    return header == impure || (impure.back() == '/' && header.starts_with(impure));
  });
}

/// The name between quotes or angle brackets when `line` is an include, else "".
std::string IncludedHeader(std::string_view line) {
  const auto skip = [&line] {
    line.remove_prefix(std::min(line.find_first_not_of(" \t"), line.size()));
  };
  skip();
  if (!line.starts_with('#')) return "";
  line.remove_prefix(1);
  skip();
  if (!line.starts_with("include")) return "";
  line.remove_prefix(std::string_view("include").size());
  skip();
  if (line.empty() || (line[0] != '"' && line[0] != '<')) return "";
  const size_t end = line.find(line[0] == '"' ? '"' : '>', 1);
  return end == std::string_view::npos ? "" : std::string(line.substr(1, end - 1));
}

bool StartsWithAny(std::string_view text, const std::vector<std::string_view>& prefixes) {
  return std::any_of(prefixes.begin(), prefixes.end(), [&](std::string_view prefix) {
    return prefix.starts_with('*') ? text.ends_with(prefix.substr(1)) : text.starts_with(prefix);
  });
}

/// Whether validation and the planner link the file: `<folder>_cost.h` or `<folder>_cost.cc` of a
/// technique.
bool IsTechniqueCost(std::string_view file) {
  return file.starts_with("worker/engine/techniques/") &&
         (file.ends_with("_cost.h") || file.ends_with("_cost.cc"));
}

/// What is wrong with `file` (its path from the root) including `header`; "" when nothing is.
std::string Offence(const std::string& file, const std::string& header) {
  const bool test = file.ends_with("_test.cc") || file.ends_with("testing.h");
  const FolderRule* rule = nullptr;
  for (const FolderRule& candidate : FolderRules()) {
    if (test && !candidate.binds_tests) continue;
    if (file.starts_with(candidate.folder) &&
        (rule == nullptr || candidate.folder.size() > rule->folder.size())) {
      rule = &candidate;
    }
  }
  if (rule == nullptr) return "lies in no folder with a rule";
  const bool ours = std::any_of(FolderRules().begin(), FolderRules().end(), [&](const auto& r) {
    return header.starts_with(r.folder.substr(0, r.folder.find('/') + 1));
  });
  if ((ours || header.starts_with("weft/")) && !StartsWithAny(header, rule->may_include)) {
    return std::string(rule->folder) + " must not include " + header;
  }
  if (IsTechniqueCost(file) && ours && !header.starts_with("common/") && !IsTechniqueCost(header)) {
    return "the cost of a technique must not include " + header;
  }
  for (const LibraryRule& library : LibraryRules()) {
    if (header.starts_with(library.header) && !StartsWithAny(file, library.only_in)) {
      return std::string(library.header) + "* is not for this file: " + header;
    }
  }
  const bool pure =
      rule->folder == "coordinator/planner/" || rule->folder == "coordinator/scheduler/";
  if (pure && !test && IsImpure(file, header)) return "is a pure function, yet includes " + header;
  return "";
}

bool IsSource(const fs::path& path) {
  const std::string extension = path.extension();
  return extension == ".h" || extension == ".cc" || extension == ".cu" || extension == ".cuh";
}

/// "file:line: offence" for each broken rule under `root`.
std::vector<std::string> FindOffences(const fs::path& root, int* files) {
  std::vector<std::string> offences;
  for (const char* top : {"common", "kernels", "worker", "coordinator", "proto", "cli", "tests"}) {
    if (!fs::exists(root / top)) continue;
    for (const auto& entry : fs::recursive_directory_iterator(root / top)) {
      if (!entry.is_regular_file() || !IsSource(entry.path())) continue;
      ++*files;
      const std::string file = fs::relative(entry.path(), root).generic_string();
      std::ifstream stream(entry.path());
      int number = 0;
      for (std::string line; std::getline(stream, line);) {
        ++number;
        const std::string header = IncludedHeader(line);
        if (header.empty()) continue;
        if (std::string offence = Offence(file, header); !offence.empty()) {
          offences.push_back(file + ":" + std::to_string(number) + ": " + offence);
        }
      }
    }
  }
  std::sort(offences.begin(), offences.end());
  return offences;
}

/// The folders of registry.def.
std::vector<std::string> TechniqueFolders(const fs::path& root) {
  std::vector<std::string> folders;
  std::ifstream registry(root / "worker/engine/techniques/registry.def");
  for (std::string line; std::getline(registry, line);) {
    const size_t open = line.find('('), comma = line.find(',');
    if (!line.starts_with("WEFT_") || comma == std::string::npos) continue;
    folders.push_back(line.substr(open + 1, comma - open - 1));
  }
  return folders;
}

/// `text` in lower case and without underscores: as both kinds of names have a word.
std::string Squeezed(std::string_view text) {
  std::string squeezed;
  for (const char c : text) {
    if (c != '_') squeezed += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return squeezed;
}

/// The source without what it says of files of kernels, which may have a technique's name.
std::string WithoutKernels(const fs::path& path) {
  constexpr std::string_view kKernels = "kernels/";
  std::ifstream stream(path);
  std::string text;
  for (std::string line; std::getline(stream, line); text += line + "\n") {
    if (line.starts_with("#include \"kernels/")) line.clear();
    for (size_t at; (at = line.find(kKernels)) != std::string::npos;) {
      const size_t end = line.find_first_not_of("abcdefghijklmnopqrstuvwxyz_0123456789./", at);
      line.erase(at, std::min(end, line.size()) - at);
    }
  }
  return text;
}

/// A source that may name a technique.
struct Source {
  std::string file;  ///< Path from the root.
  std::string text;
  std::string squeezed;
};

/// Sources that count: tests, kernels and the refusals of techniques aside.
std::vector<Source> SourcesThatCount(const fs::path& root) {
  std::vector<Source> sources;
  for (const char* top : {"common", "worker", "coordinator", "proto", "cli"}) {
    if (!fs::exists(root / top)) continue;
    for (const auto& entry : fs::recursive_directory_iterator(root / top)) {
      const std::string file = fs::relative(entry.path(), root).generic_string();
      const std::string extension = entry.path().extension();
      const bool source = IsSource(entry.path()) || extension == ".proto" || extension == ".def";
      if (!entry.is_regular_file() || !source) continue;
      if (file.ends_with("_test.cc") || file.find("testing") != std::string::npos) continue;
      const bool of_technique = file.starts_with("worker/engine/techniques/");
      if (of_technique && file.ends_with("_cost.cc")) continue;
      const std::string text = WithoutKernels(entry.path());
      sources.push_back({file, text, Squeezed(text)});
    }
  }
  std::sort(sources.begin(), sources.end(),
            [](const Source& a, const Source& b) { return a.file < b.file; });
  return sources;
}

/// The classes and structs that a header defines in its namespace.
std::vector<std::string> TypesOf(const std::string& header) {
  std::vector<std::string> types;
  std::istringstream lines(header);
  for (std::string line; std::getline(lines, line);) {
    std::string_view rest = line;
    for (const std::string_view kind : {"enum ", "class ", "struct "}) {
      if (rest.starts_with(kind)) rest.remove_prefix(kind.size());
    }
    const bool forward = line.ends_with(';') && line.find('{') == std::string::npos;
    if (rest.size() == line.size() || forward) continue;
    types.emplace_back(rest.substr(0, rest.find_first_of(" :{")));
  }
  return types;
}

bool HasWord(std::string_view text, std::string_view word) {
  const auto in_word = [&](size_t at) {
    return at < text.size() &&
           (text[at] == '_' || std::isalnum(static_cast<unsigned char>(text[at])) != 0);
  };
  for (size_t at = 0; (at = text.find(word, at)) != std::string_view::npos; ++at) {
    if ((at == 0 || !in_word(at - 1)) && !in_word(at + word.size())) return true;
  }
  return false;
}

/// Fields of the job, or their messages, with another name than the folder of their technique.
constexpr std::pair<std::string_view, std::string_view> kFieldsOfOtherNames[] = {
    {"layer_sampling", "sampled_layers"},
    {"preference_optimization", "PreferenceSpec"},
    {"sparse24", "sparsity"},
};

/// Files outside the folder of `technique` that name it: by its folder, by a type of its headers or
/// by its field of the job. Names of others of `techniques` that have this one in them are not its.
std::vector<std::string> FilesThatName(const std::vector<Source>& sources,
                                       const std::string& technique,
                                       const std::vector<std::string>& techniques) {
  const std::string own = "worker/engine/techniques/" + technique + "/";
  const std::string name = Squeezed(technique);
  std::vector<std::string> names = {name}, longer, types;
  for (const auto& [folder, field] : kFieldsOfOtherNames) {
    if (folder == technique) names.push_back(Squeezed(field));
  }
  for (const std::string& other : techniques) {
    const std::string squeezed = Squeezed(other);
    if (squeezed != name && squeezed.find(name) != std::string::npos) longer.push_back(squeezed);
  }
  for (const Source& source : sources) {
    if (!source.file.starts_with(own) || !source.file.ends_with(".h")) continue;
    for (std::string& type : TypesOf(source.text)) types.push_back(std::move(type));
  }
  std::vector<std::string> found;
  for (const Source& source : sources) {
    if (source.file.starts_with(own)) continue;
    std::string text = source.squeezed;
    for (const std::string& other : longer) {
      for (size_t at; (at = text.find(other)) != std::string::npos;) text.erase(at, other.size());
    }
    const bool named =
        std::any_of(
            names.begin(), names.end(),
            [&](const std::string& each) { return text.find(each) != std::string::npos; }) ||
        std::any_of(types.begin(), types.end(),
                    [&](const std::string& type) { return HasWord(source.text, type); });
    if (named) found.push_back(source.file);
  }
  return found;
}

/// How many files outside its folder may name a technique.
std::ptrdiff_t MostFilesThatName(std::string_view technique) {
  struct Exception {
    std::string_view technique;
    std::ptrdiff_t most;
  };
  constexpr Exception kExceptions[] = {
      // Machines measure their products: rates have a name there, and in profiles. Of 2:4 sparsity
      // job files have a word in place of a number, which is read with them.
      {"fp8", 6},
      {"sparse24", 11},
      // Phases have its field, too, and the trainer searches a size with it.
      {"layer_sampling", 12},
      // Who reads the folders of Hugging Face's library, which has its name, as commands do.
      {"peft", 16},
  };
  for (const Exception& exception : kExceptions) {
    if (exception.technique == technique) return exception.most;
  }
  return 4;
}

// A technique is its folder, a message of the job, a line of the registry, and what it refuses.
TEST(Architecture, TechniquesAreNamedInFewFilesOutsideTheirFolder) {
  const fs::path root = WEFT_SOURCE_DIR;
  const std::vector<std::string> folders = TechniqueFolders(root);
  const std::vector<Source> sources = SourcesThatCount(root);
  EXPECT_GE(folders.size(), 4);
  for (const std::string& technique : folders) {
    std::vector<std::string> files = FilesThatName(sources, technique, folders);
    // The formats of the folders of Hugging Face's library, which has the technique's name.
    if (technique == "peft") {
      std::erase_if(
          files, [](const std::string& file) { return file.starts_with("common/formats/peft_"); });
    }
    std::printf("%s is named in %zu other files\n", technique.c_str(), files.size());
    for (const std::string& file : files) std::printf("  %s\n", file.c_str());
    EXPECT_LE(std::ssize(files), MostFilesThatName(technique)) << technique;
  }
}

TEST(Architecture, EveryIncludeFollowsTheArrows) {
  int files = 0;
  EXPECT_THAT(FindOffences(WEFT_SOURCE_DIR, &files), IsEmpty());
  EXPECT_GT(files, 100) << "the sources were not found";
}

class WrongTree : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "weft-architecture-XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
  }
  void TearDown() override { fs::remove_all(root_); }

  void Write(const std::string& file, const std::string& text) {
    fs::create_directories((root_ / file).parent_path());
    std::ofstream(root_ / file) << text;
  }

  std::vector<std::string> OffencesOf(const std::string& file, const std::string& text) {
    Write(file, text);
    int files = 0;
    std::vector<std::string> offences = FindOffences(root_, &files);
    EXPECT_EQ(files, 1);
    fs::remove(root_ / file);
    return offences;
  }

  fs::path root_;
};

TEST_F(WrongTree, BrokenArrowsAreFoundWithFileAndLine) {
  EXPECT_THAT(OffencesOf("common/x.cc", "#include \"common/x.h\"\n#include \"kernels/dtype.h\"\n"),
              ElementsAre("common/x.cc:2: common/ must not include kernels/dtype.h"));
  const std::pair<const char*, const char*> wrong[] = {
      {"kernels/linear/linear_cpu.cc", "#include \"worker/engine/tensor/tensor.h\""},
      {"worker/engine/nn/x.h", "#include \"worker/trainer/rank.h\""},
      {"worker/engine/nn/x.h", "#include \"worker/engine/techniques/fp8/fp8_products.h\""},
      {"worker/engine/nn/x.h", "#include \"worker/engine/models/model.h\""},
      {"worker/engine/tensor/x.cc", "#include \"worker/engine/train/step_report.h\""},
      {"worker/engine/autograd/x.cc", "#include \"worker/engine/models/model.h\""},
      {"worker/engine/comm/x.cc", "#include \"worker/engine/techniques/technique.h\""},
      {"worker/engine/data/x.cc", "#include \"worker/engine/train/step_report.h\""},
      {"worker/engine/optim/x.cc", "#include \"worker/engine/techniques/technique.h\""},
      {"worker/engine/nn/x.h", "#include <grpcpp/grpcpp.h>"},
      {"worker/engine/techniques/x/x.h", "#include \"worker/engine/train/trainer.h\""},
      {"worker/engine/techniques/x/x.cc", "#include \"worker/engine/testing/tiny_run.h\""},
      {"worker/engine/nn/x.h", "  #  include \"weft/v1/job.pb.h\""},
      {"worker/engine/nn/x.h", "#include \"coordinator/planner/planner.h\""},
      {"worker/trainer/x.cc", "#include \"worker/daemon/agent.h\""},
      {"worker/trainer/x.cc", "#include \"proto/convert.h\""},
      {"coordinator/planner/x.cc", "#include \"kernels/dtype.h\""},
      {"coordinator/planner/x.cc", "#include \"common/clock.h\""},
      {"coordinator/planner/x.cc", "#include <chrono>"},
      {"coordinator/scheduler/x.cc", "#include \"coordinator/store/store.h\""},
      {"coordinator/store/x.cc", "#include \"proto/convert.h\""},
      {"kernels/adamw/adamw_cpu.cc", "#include <cuda_runtime.h>"},
      {"kernels/adamw/adamw_cpu.cc", "#include <google/protobuf/message.h>"},
      {"cli/plan.cc", "#include \"coordinator/store/store.h\""},
  };
  for (const auto& [file, text] : wrong) {
    EXPECT_THAT(OffencesOf(file, text), ElementsAre(HasSubstr(std::string(file) + ":1: ")))
        << file << " " << text;
  }
}

TEST_F(WrongTree, TechniquesAreFoundByTheirFolderTypesAndFields) {
  const std::string folder = "worker/engine/techniques/sparse24/";
  Write(folder + "x.h", "class Tensor;\nstruct MaskSearch : Search {\n  int x;\n};\n");
  Write("common/a.h", "#include \"" + folder + "x.h\"\n");
  Write("common/b.h", "void Run(const MaskSearch& search);\n");
  Write("proto/c.proto", "SparsitySpec sparsity = 1;\n");
  Write("common/d.h",
        "void Run(const Tensor& t, const MaskSearches& s);  // kernels/sparse24/x.h\n");
  Write("common/e_test.cc", "MaskSearch search;\n");
  EXPECT_THAT(FilesThatName(SourcesThatCount(root_), "sparse24", {"sparse24"}),
              ElementsAre("common/a.h", "common/b.h", "proto/c.proto"));
  Write("common/f.h", "int structured_pruning, pruning;\n");
  Write("common/g.h", "int structured_pruning;\n");
  EXPECT_THAT(FilesThatName(SourcesThatCount(root_), "pruning", {"pruning", "structured_pruning"}),
              ElementsAre("common/f.h"));
}

TEST_F(WrongTree, RightIncludesPass) {
  const std::pair<const char*, const char*> right[] = {
      {"worker/engine/nn/x.h", "#include \"kernels/linear/linear.h\"\n#include <vector>"},
      {"worker/engine/train/x.h", "#include \"worker/engine/techniques/technique.h\""},
      {"worker/engine/optim/x_test.cc", "#include \"worker/engine/checkpoint/tensor_files.h\""},
      {"worker/engine/techniques/x/x_test.cc", "#include \"worker/engine/testing/tiny_run.h\""},
      {"worker/daemon/x.cc", "#include <grpcpp/grpcpp.h>\n#include \"proto/convert.h\""},
      {"kernels/adamw/adamw_cuda.cu", "#include <cuda_runtime.h>"},
      {"coordinator/planner/x_test.cc", "#include <chrono>"},
      {"coordinator/planner/x.cc", "#include \"common/model/model_counts.h\""},
      {"common/x.cc", "// #include \"kernels/dtype.h\" is not ours to use"},
  };
  for (const auto& [file, text] : right) EXPECT_THAT(OffencesOf(file, text), IsEmpty()) << file;
}

}  // namespace
}  // namespace weft
