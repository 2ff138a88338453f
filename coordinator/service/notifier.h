#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

namespace weft::coordinator {

/// Tells watchers that something about a job has changed, not what: they look again. Thread-safe.
/// Callbacks run on the notifying thread and must not block.
class Notifier {
 public:
  /// Ends the watch when destroyed. A callback that has begun may still be running then.
  class Watch {
   public:
    Watch(Notifier& notifier, std::string key, int64_t id)
        : notifier_(notifier), key_(std::move(key)), id_(id) {}
    ~Watch() { notifier_.Remove(key_, id_); }
    Watch(const Watch&) = delete;
    Watch& operator=(const Watch&) = delete;

   private:
    Notifier& notifier_;
    std::string key_;
    int64_t id_;
  };

  std::unique_ptr<Watch> Add(const std::string& key, std::function<void()> callback) {
    std::lock_guard lock(mutex_);
    watchers_[key][++last_id_] = std::make_shared<std::function<void()>>(std::move(callback));
    return std::make_unique<Watch>(*this, key, last_id_);
  }

  void Notify(const std::string& key) {
    std::map<int64_t, std::shared_ptr<std::function<void()>>> callbacks;
    {
      std::lock_guard lock(mutex_);
      auto it = watchers_.find(key);
      if (it == watchers_.end()) return;
      callbacks = it->second;
    }
    for (auto& [id, callback] : callbacks) (*callback)();
  }

 private:
  void Remove(const std::string& key, int64_t id) {
    std::lock_guard lock(mutex_);
    auto it = watchers_.find(key);
    if (it == watchers_.end()) return;
    it->second.erase(id);
    if (it->second.empty()) watchers_.erase(it);
  }

  std::mutex mutex_;
  int64_t last_id_ = 0;
  std::map<std::string, std::map<int64_t, std::shared_ptr<std::function<void()>>>> watchers_;
};

}  // namespace weft::coordinator
