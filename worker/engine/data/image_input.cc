// Labelled images: IDX pairs, and folders of PNG and JPEG files.
#include <algorithm>
#include <atomic>
#include <map>
#include <set>
#include <thread>
#include <utility>

#include "common/formats/image.h"
#include "common/hash.h"
#include "common/text.h"
#include "worker/engine/data/class_order.h"
#include "worker/engine/data/dataset_input.h"

namespace weft::engine {
namespace {

constexpr size_t kWave = 256;  ///< Images decoded before they are written.

/// Writes images and labels in the order in which they come.
class ImageWriter {
 public:
  ImageWriter(const std::string& path, const JobSpec& job)
      : path_(path), size_(job.model.image_size), channels_(job.model.image_channels) {}

  Status Start(Env& env) {
    WEFT_ASSIGN_OR_RETURN(TokenShardWriter writer,
                          TokenShardWriter::Create(env, path_ + ".tokens", 256, NoTokenizerHash()));
    writer_.emplace(std::move(writer));
    return OkStatus();
  }
  Status Add(const Image& image, int32_t label) {
    bytes_.assign(image.pixels.begin(), image.pixels.end());
    labels_.push_back(label);
    WEFT_RETURN_IF_ERROR(writer_->Append(bytes_));
    writer_->EndDocument();
    return OkStatus();
  }
  Status Finish(Env& env, size_t classes) {
    WEFT_RETURN_IF_ERROR(writer_->Finish());
    return WriteLabels(env, path_ + ".labels", labels_, classes, NoTokenizerHash());
  }

  int64_t size() const { return size_; }
  int64_t channels() const { return channels_; }

 private:
  std::string path_;
  int64_t size_;
  int64_t channels_;
  std::optional<TokenShardWriter> writer_;
  std::vector<int32_t> bytes_;
  std::vector<int32_t> labels_;
};

Image Fitted(Image image, int64_t size) {
  if (image.height == size && image.width == size) return image;
  return ResizeSquare(image, size);
}

/// A pair of IDX files in memory.
struct IdxPair {
  std::string path;
  std::string hash;
  IdxFile images;
  IdxFile labels;
};

class IdxInput : public DatasetInput {
 public:
  static Result<std::unique_ptr<DatasetInput>> Open(Env& env, const JobSpec& job) {
    std::unique_ptr<IdxInput> input(new IdxInput(job));
    WEFT_RETURN_IF_ERROR(input->OpenPairs(env, job.data.train, input->train_));
    WEFT_RETURN_IF_ERROR(input->OpenPairs(env, job.data.validation, input->validation_));
    return std::unique_ptr<DatasetInput>(std::move(input));
  }

  Json Key() const override {
    auto contents = [](const std::vector<IdxPair>& pairs) {
      Json list = Json::array();
      for (const IdxPair& pair : pairs) list.push_back(pair.hash);
      return list;
    };
    return {"idx", job_.model.image_size, job_.model.image_channels, contents(train_),
            contents(validation_)};
  }

  bool may_cut_documents() const override { return false; }

  Status Write(Env& env, const std::string& folder, int /*threads*/, DatasetInfo& info) override {
    size_t classes = 1;
    for (const auto* pairs : {&train_, &validation_}) {
      for (const IdxPair& pair : *pairs) {
        for (uint8_t label : pair.labels.values) classes = std::max<size_t>(classes, label + 1u);
      }
    }
    for (size_t i = 0; i < classes; ++i) info.classes.push_back(std::to_string(i));
    WEFT_RETURN_IF_ERROR(WritePart(env, JoinPath(folder, "train"), train_, classes));
    if (validation_.empty()) return OkStatus();
    return WritePart(env, JoinPath(folder, "validation"), validation_, classes);
  }

 private:
  explicit IdxInput(const JobSpec& job) : job_(job) {}

  Status OpenPairs(Env& env, const std::vector<std::string>& paths, std::vector<IdxPair>& pairs) {
    for (const std::string& path : paths) {
      WEFT_ASSIGN_OR_RETURN(const std::string labels, IdxLabelsPath(path));
      IdxPair pair{path, "", {}, {}};
      WEFT_ASSIGN_OR_RETURN(pair.images, Read(env, path, pair.hash));
      WEFT_ASSIGN_OR_RETURN(pair.labels, Read(env, labels, pair.hash));
      WEFT_RETURN_IF_ERROR(CheckIdxPair(path, pair.images.shape, pair.labels.shape));
      pairs.push_back(std::move(pair));
    }
    return OkStatus();
  }

  static Result<IdxFile> Read(Env& env, const std::string& path, std::string& hash) {
    WEFT_ASSIGN_OR_RETURN(std::unique_ptr<MappedFile> file, env.MapFile(path));
    hash += HashHex(file->bytes());
    Result<IdxFile> read = ReadIdx(file->bytes());
    if (!read.ok()) return read.status().WithContext(path);
    return read;
  }

  Status WritePart(Env& env, const std::string& path, const std::vector<IdxPair>& pairs,
                   size_t classes) const {
    ImageWriter writer(path, job_);
    WEFT_RETURN_IF_ERROR(writer.Start(env));
    std::vector<std::pair<const IdxPair*, size_t>> all;
    for (const IdxPair& pair : pairs) {
      for (size_t i = 0; i < pair.labels.values.size(); ++i) all.emplace_back(&pair, i);
    }
    for (size_t place : ScatteredOrder(all.size())) {
      const auto& [pair, i] = all[place];
      WEFT_RETURN_IF_ERROR(
          writer.Add(Fitted(ImageAt(*pair, i), writer.size()), pair->labels.values[i]));
    }
    return writer.Finish(env, classes);
  }

  /// Grey values, repeated for each colour that the model wants.
  Image ImageAt(const IdxPair& pair, size_t i) const {
    const auto channels = static_cast<size_t>(job_.model.image_channels);
    Image image{pair.images.shape[1], pair.images.shape[2], job_.model.image_channels, {}};
    const auto count = static_cast<size_t>(image.height * image.width);
    image.pixels.reserve(count * channels);
    for (size_t p = 0; p < count; ++p) {
      image.pixels.insert(image.pixels.end(), channels, pair.images.values[i * count + p]);
    }
    return image;
  }

  JobSpec job_;
  std::vector<IdxPair> train_;
  std::vector<IdxPair> validation_;
};

struct ImageFile {
  std::string path;
  std::string label;
};

class FolderInput : public DatasetInput {
 public:
  static Result<std::unique_ptr<DatasetInput>> Open(Env& env, const JobSpec& job) {
    std::unique_ptr<FolderInput> input(new FolderInput(env, job));
    WEFT_ASSIGN_OR_RETURN(input->key_, input->FindFiles(job.data.train, input->train_));
    WEFT_ASSIGN_OR_RETURN(Json other, input->FindFiles(job.data.validation, input->validation_));
    WEFT_ASSIGN_OR_RETURN(input->classes_of_model_, ClassesOfModel(env, job.model));
    input->key_ = {"image_folder",          job.model.image_size, job.model.image_channels,
                   std::move(input->key_),  std::move(other),     "classes by value",
                   input->classes_of_model_};
    return std::unique_ptr<DatasetInput>(std::move(input));
  }

  Json Key() const override { return key_; }
  bool may_cut_documents() const override { return false; }

  Status Write(Env& env, const std::string& folder, int threads, DatasetInfo& info) override {
    std::set<std::string> names;
    for (const ImageFile& file : train_) names.insert(file.label);
    info.classes = OrderClasses(names, classes_of_model_);
    std::map<std::string, int32_t> classes;
    for (const std::string& name : info.classes) {
      classes.emplace(name, static_cast<int32_t>(classes.size()));
    }
    for (const ImageFile& file : validation_) {
      if (!classes.contains(file.label)) {
        return InvalidError("the class \"" + ClipText(file.label) + "\" of " + file.path +
                            " is not in the training data");
      }
    }
    WEFT_RETURN_IF_ERROR(WritePart(env, JoinPath(folder, "train"), train_, classes, threads));
    if (validation_.empty()) return OkStatus();
    return WritePart(env, JoinPath(folder, "validation"), validation_, classes, threads);
  }

 private:
  FolderInput(Env& env, const JobSpec& job) : env_(env), job_(job) {}

  /// Lists the images of folders of classes; returns names and content hashes.
  Result<Json> FindFiles(const std::vector<std::string>& folders,
                         std::vector<ImageFile>& files) const {
    Json key = Json::array();
    for (const std::string& folder : folders) {
      const size_t before = files.size();
      WEFT_ASSIGN_OR_RETURN(std::vector<std::string> classes, env_.ListDir(folder));
      for (const std::string& label : classes) {
        const std::string inner = JoinPath(folder, label);
        Result<std::vector<std::string>> names = env_.ListDir(inner);
        if (names.status().kind() == FailureKind::kOutside) return names.status();
        if (!names.ok()) continue;  // a file next to the folders
        for (const std::string& name : *names) {
          if (!IsImageName(name)) continue;
          files.push_back({JoinPath(inner, name), label});
          WEFT_ASSIGN_OR_RETURN(std::unique_ptr<MappedFile> file, env_.MapFile(files.back().path));
          key.push_back({label, HashHex(file->bytes())});
        }
      }
      if (files.size() == before) return NoImagesError(folder);
    }
    return key;
  }

  Result<Image> Decode(const ImageFile& file) const {
    WEFT_ASSIGN_OR_RETURN(std::unique_ptr<MappedFile> bytes, env_.MapFile(file.path));
    Result<Image> image = DecodeImage(bytes->bytes(), job_.model.image_channels);
    if (!image.ok()) return image.status().WithContext(file.path);
    return Fitted(*std::move(image), job_.model.image_size);
  }

  Status WritePart(Env& env, const std::string& path, const std::vector<ImageFile>& files,
                   const std::map<std::string, int32_t>& classes, int threads) const {
    ImageWriter writer(path, job_);
    WEFT_RETURN_IF_ERROR(writer.Start(env));
    const std::vector<size_t> order = ScatteredOrder(files.size());
    for (size_t first = 0; first < order.size(); first += kWave) {
      const size_t count = std::min(kWave, order.size() - first);
      std::vector<Result<Image>> images(count, Image{});
      std::atomic<size_t> next{0};
      auto work = [&] {
        for (size_t i = next++; i < count; i = next++) {
          images[i] = Decode(files[order[first + i]]);
        }
      };
      {
        std::vector<std::jthread> helpers;
        for (int t = 1; t < threads; ++t) helpers.emplace_back(work);
        work();
      }
      for (size_t i = 0; i < count; ++i) {
        if (!images[i].ok()) return images[i].status();
        WEFT_RETURN_IF_ERROR(writer.Add(*images[i], classes.at(files[order[first + i]].label)));
      }
    }
    return writer.Finish(env, classes.size());
  }

  Env& env_;
  JobSpec job_;
  std::vector<ImageFile> train_;
  std::vector<ImageFile> validation_;
  std::vector<std::string> classes_of_model_;
  Json key_;
};

/// What both kinds say of their dataset.
class CheckedImageInput : public DatasetInput {
 public:
  CheckedImageInput(std::unique_ptr<DatasetInput> input, const JobSpec& job)
      : input_(std::move(input)),
        size_(job.model.image_size),
        channels_(job.model.image_channels) {}

  Json Key() const override { return input_->Key(); }
  bool may_cut_documents() const override { return false; }
  Status Write(Env& env, const std::string& folder, int threads, DatasetInfo& info) override {
    info.tokenizer_hash = NoTokenizerHash();
    info.vocab_size = 256;
    info.labels = true;
    info.image_size = size_;
    info.image_channels = channels_;
    return input_->Write(env, folder, threads, info);
  }

 private:
  std::unique_ptr<DatasetInput> input_;
  int64_t size_;
  int64_t channels_;
};

}  // namespace

Result<std::unique_ptr<DatasetInput>> OpenImageInput(Env& env, const JobSpec& job,
                                                     const std::string& format) {
  WEFT_ASSIGN_OR_RETURN(std::unique_ptr<DatasetInput> input,
                        format == "idx" ? IdxInput::Open(env, job) : FolderInput::Open(env, job));
  return std::unique_ptr<DatasetInput>(std::make_unique<CheckedImageInput>(std::move(input), job));
}

}  // namespace weft::engine
