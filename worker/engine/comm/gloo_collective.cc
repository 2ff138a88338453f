#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <numeric>

#include <gloo/allgather.h>
#include <gloo/allgatherv.h>
#include <gloo/allreduce.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/device.h>

#include "worker/engine/comm/collective.h"
#include "worker/engine/comm/single_collective.h"

namespace weft::engine {
namespace {

/// Our Store as Gloo wants it: errors are exceptions, which Connect catches.
class GlooStore : public gloo::rendezvous::Store {
 public:
  GlooStore(engine::Store& store, std::chrono::milliseconds timeout)
      : store_(store), timeout_(timeout) {}

  void set(const std::string& key, const std::vector<char>& data) override {
    if (Status status = store_.Set(key, {data.data(), data.size()}); !status.ok()) {
      throw gloo::IoException(status.message());
    }
  }

  std::vector<char> get(const std::string& key) override {
    Result<std::string> value = store_.Get(key, timeout_);
    if (!value.ok()) throw gloo::IoException(value.status().message());
    return {value->begin(), value->end()};
  }

  void wait(const std::vector<std::string>& keys) override { wait(keys, timeout_); }

  /// Gloo passes the timeout of operations here; joining has its own, longer one.
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds&) override {
    for (const std::string& key : keys) get(key);
  }

 private:
  engine::Store& store_;
  std::chrono::milliseconds timeout_;
};

class GlooCollective : public Collective {
 public:
  explicit GlooCollective(std::shared_ptr<gloo::rendezvous::Context> context)
      : context_(std::move(context)) {}

  int rank() const override { return context_->rank; }
  int size() const override { return context_->size; }

  Status AllReduceSum(std::span<float> values) override { return AllReduce(values); }
  Status AllReduceSum(std::span<double> values) override { return AllReduce(values); }

  Result<std::vector<std::string>> AllGather(std::string_view bytes) override {
    uint64_t own_length = bytes.size();
    std::vector<uint64_t> lengths(static_cast<size_t>(size()));
    WEFT_RETURN_IF_ERROR(Run("gathering lengths", [&] {
      gloo::AllgatherOptions options(context_);
      options.setInput(&own_length, 1);
      options.setOutput(lengths.data(), lengths.size());
      gloo::allgather(options);
    }));
    std::vector<size_t> counts(lengths.begin(), lengths.end());
    const uint64_t total = std::accumulate(counts.begin(), counts.end(), uint64_t{0});
    std::string own(bytes);
    std::string all(total, '\0');
    if (total > 0) {
      WEFT_RETURN_IF_ERROR(Run("gathering " + std::to_string(total) + " bytes", [&] {
        gloo::AllgathervOptions options(context_);
        options.setInput(own.data(), own.size());
        options.setOutput(all.data(), counts);
        gloo::allgatherv(options);
      }));
    }
    std::vector<std::string> parts;
    size_t begin = 0;
    for (size_t count : counts) {
      parts.push_back(all.substr(begin, count));
      begin += count;
    }
    return parts;
  }

  Status Broadcast(std::span<std::byte> bytes, int root) override {
    if (bytes.empty()) return OkStatus();
    return Run("broadcasting " + std::to_string(bytes.size()) + " bytes", [&] {
      gloo::BroadcastOptions options(context_);
      options.setOutput(reinterpret_cast<uint8_t*>(bytes.data()), bytes.size());
      options.setRoot(root);
      gloo::broadcast(options);
    });
  }

  Status Barrier() override {
    return Run("waiting at a barrier", [&] {
      gloo::BarrierOptions options(context_);
      gloo::barrier(options);
    });
  }

  void Abort() override {
    broken_ = true;
    context_->closeConnections();
  }

 private:
  /// Elements of one Gloo call: a peer lost in the middle of a large buffer is noticed within one
  /// piece, and the piece, not the buffer, is what the timeout covers.
  static constexpr size_t kPieceElements = size_t{8} << 20;

  template <class T>
  Status AllReduce(std::span<T> values) {
    for (size_t begin = 0; begin < values.size(); begin += kPieceElements) {
      std::span<T> piece = values.subspan(begin, std::min(kPieceElements, values.size() - begin));
      WEFT_RETURN_IF_ERROR(Run("summing " + std::to_string(values.size()) + " values", [&] {
        gloo::AllreduceOptions options(context_);
        // The ring adds in an order given by the ranks alone.
        options.setAlgorithm(gloo::AllreduceOptions::Algorithm::RING);
        options.setReduceFunction(
            static_cast<void (*)(void*, const void*, const void*, size_t)>(&gloo::sum<T>));
        options.setOutput(piece.data(), piece.size());
        gloo::allreduce(options);
      }));
    }
    return OkStatus();
  }

  template <class Operation>
  Status Run(const std::string& what, Operation&& operation) {
    const std::string where =
        "rank " + std::to_string(rank()) + " of " + std::to_string(size()) + ", " + what;
    if (broken_) return UnavailableError(where + ": the group of ranks is broken");
    try {
      operation();
      return OkStatus();
    } catch (const std::exception& error) {
      Abort();
      return UnavailableError(where + ": a peer is lost: " + error.what());
    }
  }

  std::shared_ptr<gloo::rendezvous::Context> context_;
  std::atomic<bool> broken_{false};
};

Status CheckOptions(const CollectiveOptions& options) {
  if (options.size < 1 || options.rank < 0 || options.rank >= options.size) {
    return InvalidError("rank " + std::to_string(options.rank) + " of " +
                        std::to_string(options.size) + " ranks is impossible");
  }
  if (options.host.empty()) return InvalidError("collectives need an address to listen on");
  return OkStatus();
}

}  // namespace

Result<std::unique_ptr<Collective>> ConnectCollective(const CollectiveOptions& options,
                                                      Store& store) {
  WEFT_RETURN_IF_ERROR(CheckOptions(options));
  if (options.size == 1) return std::unique_ptr<Collective>(std::make_unique<SingleCollective>());
  std::shared_ptr<gloo::transport::Device> device;
  try {
    device = gloo::transport::tcp::CreateDevice(gloo::transport::tcp::attr(options.host.c_str()));
  } catch (const std::exception& error) {
    return InvalidError("listening on '" + options.host + "' for collectives: " + error.what() +
                        "; hint: the worker's address must be one of its own machine");
  }
  try {
    auto context = std::make_shared<gloo::rendezvous::Context>(options.rank, options.size);
    context->setTimeout(options.timeout);
    GlooStore gloo_store(store, options.connect_timeout);
    context->connectFullMesh(gloo_store, device);
    auto group = std::make_unique<GlooCollective>(std::move(context));
    // Nobody may leave before everybody has joined: a peer that connects to us last would see the
    // closed connection as a failure to join.
    WEFT_RETURN_IF_ERROR(group->Barrier());
    return std::unique_ptr<Collective>(std::move(group));
  } catch (const std::exception& error) {
    return UnavailableError("rank " + std::to_string(options.rank) + " of " +
                            std::to_string(options.size) + " could not join its peers from " +
                            options.host + ": " + error.what());
  }
}

}  // namespace weft::engine
